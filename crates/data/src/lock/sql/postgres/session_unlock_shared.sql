-- $1: the key. Whether it was locked by this session, and is free now.
SELECT pg_advisory_unlock_shared($1::int8);
