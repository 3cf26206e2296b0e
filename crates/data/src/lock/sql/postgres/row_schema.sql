-- The rows that leasehold's row locks lock. A row is made when its name is first locked, and may be
-- deleted at any time.
CREATE TABLE IF NOT EXISTS leasehold_lock (
  name text COLLATE "C" NOT NULL PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 512)
);
