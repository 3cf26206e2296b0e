-- ?1 token of the new run, ?2 try, ?3 term in us, ?4 keep in us, ?5 scope, ?6 key, ?7 token of the run that is
-- silent, ?8 now.
UPDATE leasehold_idempotency
SET token = ?1,
    try_id = ?2,
    state = 0,
    attempt = attempt + 1,
    runs_until_us = ?8 + ?3,
    expires_us = max(expires_us, ?8 + ?4)
WHERE scope = ?5 AND request_key = ?6 AND token = ?7 AND state = 0 AND runs_until_us <= ?8
