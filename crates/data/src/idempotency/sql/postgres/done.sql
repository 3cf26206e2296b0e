-- $1 scope, $2 key, $3 fingerprint, $4 status, $5 head, $6 body, $7 keep in us.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, state, token, attempt, runs_until_us, expires_us, status, head, body)
VALUES ($1, $2, $3, '', 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, 1, 0,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $7, $4, $5, $6)
ON CONFLICT (scope, request_key) DO NOTHING
