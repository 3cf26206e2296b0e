-- ?1 scope, ?2 key, ?3 now. One row always: the time, and what is known of the key.
SELECT moment.now_us, k.state, k.token, k.attempt, k.runs_until_us, k.expires_us, k.fingerprint, k.try_id,
    k.point_name, k.point_state, k.status, k.head, k.body
FROM (SELECT ?3 AS now_us) AS moment
LEFT JOIN leasehold_idempotency AS k ON k.scope = ?1 AND k.request_key = ?2
