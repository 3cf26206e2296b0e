-- ?1 name of the recovery point, ?2 its state, ?3 term in us, ?4 scope, ?5 key, ?6 token, ?7 now.
UPDATE leasehold_idempotency
SET point_name = ?1,
    point_state = ?2,
    runs_until_us = max(runs_until_us + 1, ?7 + ?3)
WHERE scope = ?4 AND request_key = ?5 AND token = ?6 AND state = 0
