-- $1: the names, a line each. Those that have no row yet, in their order.
SELECT given.name, current_setting('transaction_isolation')
FROM unnest(string_to_array($1::text, E'\n')) WITH ORDINALITY AS given (name, place)
WHERE NOT EXISTS (SELECT FROM leasehold_lock WHERE leasehold_lock.name = given.name)
ORDER BY given.place;
