-- Term in us, scope, key, token.
UPDATE leasehold_idempotency
SET runs_until_us = GREATEST(runs_until_us + 1, (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) + ?)
WHERE scope = ? AND request_key = ? AND token = ? AND state = 0
