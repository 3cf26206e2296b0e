-- $1 scope, $2 key, $3 fingerprint, $4 try, $5 term in us, $6 keep in us. Nothing is written if the key is known.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, state, token, attempt, runs_until_us, expires_us)
SELECT $1, $2, $3, $4, 0, now_us, 1, now_us + $5, now_us + $6
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us) AS moment
ON CONFLICT (scope, request_key) DO NOTHING
RETURNING token
