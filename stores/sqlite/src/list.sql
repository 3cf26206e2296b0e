SELECT name FROM resource WHERE name >= ?1 AND name > ?2 ORDER BY name
