-- Idempotency keys: one row a key, kept after its run has finished. Times are microseconds since 1970.
-- `met` counts the claims that met another in flight.
CREATE TABLE IF NOT EXISTS leasehold_idempotency (
    scope VARBINARY(255) NOT NULL,
    request_key VARBINARY(255) NOT NULL,
    fingerprint BINARY(32) NOT NULL,
    try_id BINARY(16) NOT NULL,
    state BIGINT NOT NULL, -- 0 running, 1 finished, 2 forgotten
    token BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    runs_until_us BIGINT NOT NULL,
    expires_us BIGINT NOT NULL,
    met BIGINT NOT NULL,
    point_name VARBINARY(255),
    point_state MEDIUMBLOB,
    status BIGINT,
    head MEDIUMBLOB,
    body MEDIUMBLOB,
    PRIMARY KEY (scope, request_key),
    KEY leasehold_idempotency_expires (expires_us)
) ENGINE = InnoDB
