-- Token of the new run, try, term in us, keep in us, scope, key, token of the run that is silent.
UPDATE leasehold_idempotency
SET token = ?,
    try_id = ?,
    state = 0,
    attempt = attempt + 1,
    runs_until_us = (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?,
    expires_us = GREATEST(expires_us, (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?)
WHERE scope = ? AND request_key = ? AND token = ? AND state = 0
    AND runs_until_us <= (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000))
