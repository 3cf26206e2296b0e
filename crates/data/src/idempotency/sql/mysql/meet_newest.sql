-- Scope, key. As meet.sql, of what is committed now, whatever the isolation level shows.
SELECT 1 FROM leasehold_idempotency WHERE scope = ? AND request_key = ? LOCK IN SHARE MODE
