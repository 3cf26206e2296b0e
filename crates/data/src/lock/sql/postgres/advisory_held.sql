-- $1: the key; $2: ExclusiveLock or ShareLock. 1 if this session, or its transaction, has it.
SELECT count(*)::int8 FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND mode = $2::text
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND classid = (($1::int8 >> 32) & 4294967295)::oid
  AND objid = ($1::int8 & 4294967295)::oid
  AND objsubid = 1;
