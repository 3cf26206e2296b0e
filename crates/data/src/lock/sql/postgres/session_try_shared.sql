-- $1: the key. Whether it is locked now, to the end of the session or its unlock.
SELECT pg_try_advisory_lock_shared($1::int8);
