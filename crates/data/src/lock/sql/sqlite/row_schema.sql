-- What leasehold's row locks write to take SQLite's one write lock. Rows may be deleted at any time.
CREATE TABLE IF NOT EXISTS leasehold_lock (
  name TEXT NOT NULL PRIMARY KEY CHECK (length(CAST(name AS BLOB)) BETWEEN 1 AND 512)
) WITHOUT ROWID;
