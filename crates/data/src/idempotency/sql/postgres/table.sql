-- Idempotency keys: one row a key, kept after its run has finished. Times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS leasehold_idempotency (
    scope text COLLATE "C" NOT NULL,
    request_key text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    try_id bytea NOT NULL,
    state bigint NOT NULL, -- 0 running, 1 finished, 2 forgotten
    token bigint NOT NULL,
    attempt bigint NOT NULL,
    runs_until_us bigint NOT NULL,
    expires_us bigint NOT NULL,
    point_name text,
    point_state bytea,
    status bigint,
    head bytea,
    body bytea,
    PRIMARY KEY (scope, request_key)
) WITH (fillfactor = 50)
