-- How many at most. Read without a lock; each is removed by its key, if it is then still the same.
SELECT scope, request_key, token FROM leasehold_idempotency
WHERE expires_us <= (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000))
    AND (state <> 0 OR runs_until_us <= (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)))
ORDER BY expires_us
LIMIT ?
