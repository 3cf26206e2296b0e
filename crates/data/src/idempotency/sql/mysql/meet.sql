-- Scope, key. A row if the key is known.
SELECT 1 FROM leasehold_idempotency WHERE scope = ? AND request_key = ?
