-- ?: the name, or several: `IN (?, ?)`. Locks their rows in the order of their names, or fails at
-- once.
SELECT name FROM leasehold_lock WHERE name IN (?) ORDER BY name FOR UPDATE NOWAIT;
