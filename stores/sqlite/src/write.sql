INSERT INTO record (resource, value, token, until, until_us) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (resource) DO UPDATE
   SET value = excluded.value, token = excluded.token, until = excluded.until,
       until_us = excluded.until_us
