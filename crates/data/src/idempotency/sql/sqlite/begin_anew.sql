-- ?1 token of the new run, ?2 try, ?3 fingerprint, ?4 term in us, ?5 keep in us, ?6 scope, ?7 key, ?8 token as it
-- was read, ?9 now. Of a key that was forgotten, or whose time is up.
UPDATE leasehold_idempotency
SET token = ?1,
    try_id = ?2,
    fingerprint = ?3,
    state = 0,
    attempt = 1,
    runs_until_us = ?9 + ?4,
    expires_us = ?9 + ?5,
    point_name = NULL, point_state = NULL, status = NULL, head = NULL, body = NULL
WHERE scope = ?6 AND request_key = ?7 AND token = ?8
    AND (state = 2 OR (expires_us <= ?9 AND (state = 1 OR runs_until_us <= ?9)))
