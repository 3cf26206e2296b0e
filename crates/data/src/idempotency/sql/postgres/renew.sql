-- $1 term in us, $2 scope, $3 key, $4 token.
UPDATE leasehold_idempotency
SET runs_until_us = greatest(runs_until_us + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1)
WHERE scope = $2 AND request_key = $3 AND token = $4 AND state = 0
