-- $1: the key. Waits for it as long as lock_timeout lets, and locks it as session_try_shared.sql does.
SELECT pg_advisory_lock_shared($1::int8)::text;
