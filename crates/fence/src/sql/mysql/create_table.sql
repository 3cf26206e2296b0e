-- The marks of every resource fenced in this database. Run once; running it again is harmless.
-- slot is -1 for a plain resource, else the permit slot that the row stands for. entries counts, so
-- that every access that passes changes its row: a connection may tell changed rows or matched ones.
-- Names are compared byte by byte.
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource VARBINARY(512) NOT NULL CHECK (length(resource) > 0),
    slot BIGINT NOT NULL CHECK (slot BETWEEN -1 AND 4294967295),
    exclusive_epoch BIGINT CHECK (exclusive_epoch BETWEEN 0 AND 4294967295),
    exclusive_token BIGINT CHECK (exclusive_token BETWEEN 1 AND 9007199254740991),
    shared_epoch BIGINT CHECK (shared_epoch BETWEEN 0 AND 4294967295),
    shared_token BIGINT CHECK (shared_token BETWEEN 1 AND 9007199254740991),
    entries BIGINT NOT NULL DEFAULT 0,
    CHECK ((exclusive_epoch IS NULL) = (exclusive_token IS NULL)),
    CHECK ((shared_epoch IS NULL) = (shared_token IS NULL)),
    PRIMARY KEY (resource, slot)
) ENGINE = InnoDB;
