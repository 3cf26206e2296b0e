-- $1: the names, a line each. Locks the first row, in their order, that nobody has locked.
SELECT name, current_setting('transaction_isolation') FROM leasehold_lock
WHERE name = ANY (string_to_array($1::text, E'\n'))
ORDER BY array_position(string_to_array($1::text, E'\n') COLLATE "C", name)
LIMIT 1
FOR UPDATE SKIP LOCKED;
