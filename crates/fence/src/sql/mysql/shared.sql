-- Checks a shared access and raises its mark, in one step that holds the row to COMMIT.
-- epoch, epoch, token, token, epoch, then resource, slot, epoch, token. Changes one row if it passed.
-- Assignments run from left to right, so the token is compared before the epoch changes.
/*M!100102 SET STATEMENT innodb_lock_wait_timeout = 5 FOR */
UPDATE leasehold_fence
SET entries = entries + 1,
    shared_token = CASE WHEN shared_epoch > ? OR shared_epoch = ? AND shared_token > ?
        THEN shared_token ELSE ? END,
    shared_epoch = GREATEST(COALESCE(shared_epoch, 0), ?)
WHERE resource = ? AND slot = ?
    AND (exclusive_epoch IS NULL AND exclusive_token IS NULL
        OR exclusive_epoch >= 0 AND exclusive_token > 0
        AND (exclusive_epoch, exclusive_token) <= (?, ?))
    AND (shared_epoch IS NULL AND shared_token IS NULL
        OR shared_epoch BETWEEN 0 AND 4294967295
        AND shared_token BETWEEN 1 AND 9007199254740991)
