-- ?1 scope, ?2 key. A row if the key is known.
SELECT 1 FROM leasehold_idempotency WHERE scope = ?1 AND request_key = ?2
