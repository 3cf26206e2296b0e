-- $1 how many at most. What another transaction has locked is left for another time.
DELETE FROM leasehold_idempotency
WHERE (scope, request_key) IN (
    SELECT scope, request_key FROM leasehold_idempotency
    WHERE expires_us <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        AND (state <> 0 OR runs_until_us <= (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    ORDER BY expires_us
    LIMIT $1
    FOR UPDATE SKIP LOCKED
)
