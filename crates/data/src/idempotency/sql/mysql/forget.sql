-- Scope, key, token. The next claim begins anew, with whatever payload.
UPDATE leasehold_idempotency SET state = 2, runs_until_us = 0
WHERE scope = ? AND request_key = ? AND token = ? AND state = 0
