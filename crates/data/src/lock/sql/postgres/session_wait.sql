-- $1: the key. Waits for it as long as lock_timeout lets, and locks it as session_try.sql does.
SELECT pg_advisory_lock($1::int8)::text;
