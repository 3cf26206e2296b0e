-- Idempotency keys: one row a key, kept after its run has finished. Times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS leasehold_idempotency (
    scope TEXT NOT NULL,
    request_key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    try_id BLOB NOT NULL,
    state INTEGER NOT NULL, -- 0 running, 1 finished, 2 forgotten
    token INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    runs_until_us INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    point_name TEXT,
    point_state BLOB,
    status INTEGER,
    head BLOB,
    body BLOB,
    PRIMARY KEY (scope, request_key)
) WITHOUT ROWID
