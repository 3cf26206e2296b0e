-- $1 scope, $2 key, $3 number of the key's lock. Whether the lock was free, and whether the key is known. What was
-- committed in between is not seen; `done.sql` meets it.
SELECT pg_try_advisory_xact_lock($3)::int::bigint,
    EXISTS (SELECT FROM leasehold_idempotency WHERE scope = $1 AND request_key = $2)::int::bigint
