-- Ends exclusive grants that nobody waits behind, at most one of a name; see take.sql. What is not
-- returned takes a closer look.
UPDATE public.leasehold_resource AS r
   SET h_claim = NULL, h_holder = NULL, h_label = NULL, h_ord = NULL, h_entered = NULL,
       h_since = NULL, h_until = NULL, h_term = NULL, h_life = NULL, h_previous = NULL,
       h_broken = NULL, used_at = clock_timestamp(), end_at = clock_timestamp(),
       end_how = CASE WHEN r.h_broken THEN 'broken' ELSE 'released' END,
       past = substr(r.past, greatest(1, length(r.past) - 24 * 15 + 1)) || uuid_send(a.claim)
              || int8send(public.leasehold_us(clock_timestamp()) + r.h_term)
  FROM (SELECT a.*, s.xmin AS seen
          FROM unnest($1::text[], $2::text[]::uuid[]) AS a (name, claim)
          JOIN public.leasehold_resource AS s ON s.name = a.name COLLATE "C"
          JOIN public.leasehold_resource AS f ON f.name = a.name COLLATE "C"
         WHERE s.h_claim = a.claim AND s.granted = 0 AND s.waiting = 0
           AND position(uuid_send(a.claim) IN s.past) = 0
           FOR UPDATE OF f SKIP LOCKED) AS a
 WHERE r.name = a.name COLLATE "C" AND r.xmin = a.seen AND r.h_until > clock_timestamp()
RETURNING r.name, public.leasehold_us(clock_timestamp()),
          -- If the server crashes before it is written the claim ends with its term.
          set_config('synchronous_commit', 'off', true)
