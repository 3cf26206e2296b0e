-- The rows that leasehold's row locks lock. A row is made when its name is first locked, and may be
-- deleted at any time.
CREATE TABLE IF NOT EXISTS leasehold_lock (
  name VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE = InnoDB;
