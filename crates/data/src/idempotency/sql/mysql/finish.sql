-- Status, head, body, keep in us, keep and its slack in us, scope, key, token.
UPDATE leasehold_idempotency
SET state = 1,
    status = ?, head = ?, body = ?,
    expires_us = CASE WHEN expires_us < (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?
        THEN (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ? ELSE expires_us END,
    point_name = NULL, point_state = NULL
WHERE scope = ? AND request_key = ? AND token = ? AND state = 0
