-- ?: the name, or several, sorted: `VALUES (?), (?)`. Makes the rows that are missing, and locks
-- all, as SELECT … FOR UPDATE would: an insert that finds its key locks that row exclusively.
INSERT INTO leasehold_lock (name) VALUES (?) ON DUPLICATE KEY UPDATE name = name;
