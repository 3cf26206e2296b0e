-- The marks of every resource fenced in this database. Run once; running it again is harmless.
-- slot is -1 for a plain resource, else the permit slot that the row stands for. Room is left on
-- each page, so that raising a mark touches no index.
CREATE TABLE IF NOT EXISTS leasehold_fence (
    resource text COLLATE "C" NOT NULL CHECK (octet_length(resource) BETWEEN 1 AND 512),
    slot bigint NOT NULL CHECK (slot BETWEEN -1 AND 4294967295),
    exclusive_epoch bigint CHECK (exclusive_epoch BETWEEN 0 AND 4294967295),
    exclusive_token bigint CHECK (exclusive_token BETWEEN 1 AND 9007199254740991),
    shared_epoch bigint CHECK (shared_epoch BETWEEN 0 AND 4294967295),
    shared_token bigint CHECK (shared_token BETWEEN 1 AND 9007199254740991),
    CHECK ((exclusive_epoch IS NULL) = (exclusive_token IS NULL)),
    CHECK ((shared_epoch IS NULL) = (shared_token IS NULL)),
    PRIMARY KEY (resource, slot)
) WITH (fillfactor = 50);
