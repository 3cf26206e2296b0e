-- $1 name of the recovery point, $2 its state, $3 term in us, $4 scope, $5 key, $6 token.
UPDATE leasehold_idempotency
SET point_name = $1,
    point_state = $2,
    runs_until_us = greatest(runs_until_us + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $3)
WHERE scope = $4 AND request_key = $5 AND token = $6 AND state = 0
