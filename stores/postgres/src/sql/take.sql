-- Grants exclusive claims of names where nobody is, at most one of a name: all that decides stands in
-- the name's row, so one UPDATE of it alone is right. What is not returned takes a closer look.
--
-- `s` is the row as this statement's snapshot has it, by which it decides; `f` locks it, unless somebody
-- else has; and it is written only if it is still that very version. So nothing is missed that was
-- committed in between, the bar of a claim that was given up included: who bars one changes its row.
UPDATE public.leasehold_resource AS r
   SET token = greatest(r.token + 1, public.leasehold_us(clock_timestamp())),
       ord = r.ord + 1, used_at = clock_timestamp(),
       h_claim = a.claim, h_holder = a.holder, h_label = a.label, h_ord = r.ord + 1,
       h_entered = clock_timestamp(), h_since = clock_timestamp(),
       h_until = clock_timestamp() + a.term * interval '1 microsecond', h_term = a.term,
       h_life = a.life, h_previous = coalesce(r.end_how, 'first'), h_broken = false
  FROM (SELECT a.*, s.xmin AS seen
          FROM unnest($1::text[], $2::text[]::uuid[], $3::text[]::uuid[], $4::text[], $5::bigint[],
                      $6::text[], $7::bigint[])
               AS a (name, claim, holder, label, term, life, after_loss)
          JOIN public.leasehold_resource AS s ON s.name = a.name COLLATE "C"
          JOIN public.leasehold_resource AS f ON f.name = a.name COLLATE "C"
         WHERE s.h_claim IS NULL AND s.granted = 0 AND s.waiting = 0
           AND s.token BETWEEN 1 AND 9007199254740990
           AND (a.after_loss = 0 OR s.end_how IS NULL OR s.end_how = 'released')
           AND position(uuid_send(a.claim) IN s.past) = 0
           AND NOT EXISTS (SELECT 1 FROM public.leasehold_grave AS g WHERE g.claim = a.claim)
           FOR UPDATE OF f SKIP LOCKED) AS a
 WHERE r.name = a.name COLLATE "C" AND r.xmin = a.seen
RETURNING r.name, r.token, r.h_previous, public.leasehold_us(clock_timestamp()),
          -- A grant is durable also where that is not the default.
          CASE WHEN current_setting('synchronous_commit') = 'off'
               THEN set_config('synchronous_commit', 'on', true) END
