-- ?1 scope, ?2 key, ?3 token. The next claim begins anew, with whatever payload.
UPDATE leasehold_idempotency SET state = 2, runs_until_us = 0
WHERE scope = ?1 AND request_key = ?2 AND token = ?3 AND state = 0
