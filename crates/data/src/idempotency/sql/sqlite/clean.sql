-- ?1 how many at most, ?2 now.
DELETE FROM leasehold_idempotency
WHERE (scope, request_key) IN (
    SELECT scope, request_key FROM leasehold_idempotency
    WHERE expires_us <= ?2 AND (state <> 0 OR runs_until_us <= ?2)
    ORDER BY expires_us
    LIMIT ?1
)
