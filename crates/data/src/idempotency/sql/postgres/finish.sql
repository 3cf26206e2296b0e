-- $1 status, $2 head, $3 body, $4 keep in us, $5 keep and its slack in us, $6 scope, $7 key, $8 token.
UPDATE leasehold_idempotency
SET state = 1,
    status = $1, head = $2, body = $3,
    expires_us = CASE WHEN expires_us < (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $4
        THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $5 ELSE expires_us END,
    point_name = NULL, point_state = NULL
WHERE scope = $6 AND request_key = $7 AND token = $8 AND state = 0
