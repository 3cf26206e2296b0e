-- Checks an exclusive access and raises its mark, in one step that holds the row to COMMIT.
-- epoch, token, resource, slot, then epoch and token twice. Changes one row if it passed.
-- MariaDB bounds the wait here; MySQL by the session's innodb_lock_wait_timeout.
/*M!100102 SET STATEMENT innodb_lock_wait_timeout = 5 FOR */
UPDATE leasehold_fence
SET entries = entries + 1, exclusive_epoch = ?, exclusive_token = ?
WHERE resource = ? AND slot = ?
    AND (exclusive_epoch IS NULL AND exclusive_token IS NULL
        OR exclusive_epoch >= 0 AND exclusive_token > 0
        AND (exclusive_epoch, exclusive_token) <= (?, ?))
    AND (shared_epoch IS NULL AND shared_token IS NULL
        OR shared_epoch >= 0 AND shared_token > 0
        AND (shared_epoch, shared_token) <= (?, ?))
