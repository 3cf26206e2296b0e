-- ?1 term in us, ?2 scope, ?3 key, ?4 token, ?5 now.
UPDATE leasehold_idempotency
SET runs_until_us = max(runs_until_us + 1, ?5 + ?1)
WHERE scope = ?2 AND request_key = ?3 AND token = ?4 AND state = 0
