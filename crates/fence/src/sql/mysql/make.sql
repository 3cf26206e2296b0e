-- Makes sure of the row: resource, slot. Whoever made it in the meantime is waited for.
/*M!100102 SET STATEMENT innodb_lock_wait_timeout = 5 FOR */
INSERT INTO leasehold_fence (resource, slot) VALUES (?, ?)
ON DUPLICATE KEY UPDATE entries = entries + 1
