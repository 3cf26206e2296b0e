-- Scope, key. As look.sql, of a row that this transaction has locked: the newest of it, also where the isolation
-- level shows older ones.
SELECT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) AS now_us,
    k.state, k.token, k.attempt, k.runs_until_us, k.expires_us, k.fingerprint, k.try_id,
    k.point_name, k.point_state, k.status, k.head, k.body
FROM leasehold_idempotency AS k
WHERE k.scope = ? AND k.request_key = ?
FOR UPDATE
