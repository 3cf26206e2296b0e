-- Scope, key, fingerprint, try, token, term in us, keep in us. A key that is known is locked by it, as a plain
-- INSERT would not do: two that met it would share a lock, and neither could go on.
-- A known row is changed so that the count of rows tells both apart, whatever the connection counts.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, token, state, attempt, runs_until_us, expires_us, met)
VALUES (?, ?, ?, ?, ?, 0, 1,
    (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?,
    (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?,
    0)
ON DUPLICATE KEY UPDATE met = met + 1
