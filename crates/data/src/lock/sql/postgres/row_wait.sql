-- $1: the names, a line each. Locks their rows in the order of their names, waiting for each.
SELECT name, current_setting('transaction_isolation') FROM leasehold_lock
WHERE name = ANY (string_to_array($1::text, E'\n'))
ORDER BY name
FOR UPDATE;
