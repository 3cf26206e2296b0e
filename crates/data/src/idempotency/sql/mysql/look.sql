-- Scope, key. One row always: the server's time, and what is known of the key.
-- SYSDATE alone tells the time after a wait for a lock, but in the session's zone, where an hour may come twice:
-- so it is the start of the statement in UTC, and how much later it is now, less what clocks are put by, which
-- is whole quarters of an hour.
SELECT moment.now_us, k.state, k.token, k.attempt, k.runs_until_us, k.expires_us, k.fingerprint, k.try_id,
    k.point_name, k.point_state, k.status, k.head, k.body
FROM (SELECT (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
    + MOD(TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6)) + 86400000000, 900000000)) AS now_us) AS moment
LEFT JOIN leasehold_idempotency AS k ON k.scope = ? AND k.request_key = ?
