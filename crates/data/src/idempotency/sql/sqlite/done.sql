-- ?1 scope, ?2 key, ?3 fingerprint, ?4 status, ?5 head, ?6 body, ?7 keep in us, ?8 now.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, state, token, attempt, runs_until_us, expires_us, status, head, body)
VALUES (?1, ?2, ?3, x'', 1, ?8, 1, 0, ?8 + ?7, ?4, ?5, ?6)
ON CONFLICT (scope, request_key) DO NOTHING
