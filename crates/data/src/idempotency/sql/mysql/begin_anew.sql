-- Token of the new run, try, fingerprint, term in us, keep in us, scope, key, token as it was read.
-- Of a key that was forgotten, or whose time is up.
UPDATE leasehold_idempotency
SET token = ?,
    try_id = ?,
    fingerprint = ?,
    state = 0,
    attempt = 1,
    runs_until_us = (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?,
    expires_us = (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?,
    point_name = NULL, point_state = NULL, status = NULL, head = NULL, body = NULL
WHERE scope = ? AND request_key = ? AND token = ?
    AND (state = 2 OR (expires_us <= (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000))
        AND (state = 1 OR runs_until_us <= (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)))))
