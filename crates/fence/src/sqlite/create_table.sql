-- The marks of every resource fenced in this database. Run once; running it again is harmless.
-- slot is -1 for a plain resource, else the permit slot that the row stands for.
CREATE TABLE IF NOT EXISTS main.leasehold_fence (
    resource TEXT NOT NULL CHECK (length(resource) > 0),
    slot INTEGER NOT NULL CHECK (slot BETWEEN -1 AND 4294967295),
    exclusive_epoch INTEGER CHECK (exclusive_epoch BETWEEN 0 AND 4294967295),
    exclusive_token INTEGER CHECK (exclusive_token BETWEEN 1 AND 9007199254740991),
    shared_epoch INTEGER CHECK (shared_epoch BETWEEN 0 AND 4294967295),
    shared_token INTEGER CHECK (shared_token BETWEEN 1 AND 9007199254740991),
    CHECK ((exclusive_epoch IS NULL) = (exclusive_token IS NULL)),
    CHECK ((shared_epoch IS NULL) = (shared_token IS NULL)),
    PRIMARY KEY (resource, slot)
) WITHOUT ROWID;
