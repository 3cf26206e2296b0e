INSERT INTO grave (claim, how, until) VALUES (?1, ?2, ?3)
    ON CONFLICT (claim) DO UPDATE SET how = excluded.how, until = max(until, excluded.until)
