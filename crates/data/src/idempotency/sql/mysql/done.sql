-- Scope, key, fingerprint, status, head, body, keep in us.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, state, token, attempt, runs_until_us, met, status, head, body, expires_us)
VALUES (?, ?, ?, '', 1,
    (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)),
    1, 0, 0, ?, ?, ?,
    (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?)
