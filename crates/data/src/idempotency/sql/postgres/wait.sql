-- $1 number of the key's lock.
SELECT 1::bigint FROM pg_advisory_xact_lock($1)
