-- $1: the names, a line each, sorted. Makes the rows that are missing; waits for whoever is making
-- one of them.
INSERT INTO leasehold_lock (name)
SELECT unnest(string_to_array($1::text, E'\n'))
ON CONFLICT (name) DO NOTHING;
