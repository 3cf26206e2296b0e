-- $1 scope, $2 key, $3 token. The next claim takes over at once, and goes on at the recovery point.
UPDATE leasehold_idempotency SET runs_until_us = 0
WHERE scope = $1 AND request_key = $2 AND token = $3 AND state = 0
