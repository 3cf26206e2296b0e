-- At most $3 names from $1 on and after $2, in byte order.
SELECT name FROM public.leasehold_resource WHERE name >= $1 AND name > $2 ORDER BY name LIMIT $3
