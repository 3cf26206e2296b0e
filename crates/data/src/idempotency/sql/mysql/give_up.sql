-- Scope, key, token. The next claim takes over at once, and goes on at the recovery point.
UPDATE leasehold_idempotency SET runs_until_us = 0, met = met + 1
WHERE scope = ? AND request_key = ? AND token = ? AND state = 0
