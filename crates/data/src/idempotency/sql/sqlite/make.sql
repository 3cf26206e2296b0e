-- ?1 scope, ?2 key, ?3 fingerprint, ?4 try, ?5 token, ?6 term in us, ?7 keep in us, ?8 now.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, token, state, attempt, runs_until_us, expires_us)
VALUES (?1, ?2, ?3, ?4, ?5, 0, 1, ?8 + ?6, ?8 + ?7)
ON CONFLICT (scope, request_key) DO NOTHING
