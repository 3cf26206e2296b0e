-- Renews a grant or keeps a place; never creates, never revives.
CREATE OR REPLACE FUNCTION public.leasehold_renew(q jsonb, wait boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  before public.leasehold_resource;
  c public.leasehold_claim;
  mine uuid := (q->>'claim')::uuid;
  new_term bigint := (q->>'term')::bigint;
  named bigint := (q->>'token')::bigint;
  now timestamptz;
  a jsonb;
BEGIN
  IF named IS NOT NULL THEN
    -- An exclusive holder, with nothing to be settled: all that decides stands in the one row.
    UPDATE public.leasehold_resource
       SET h_until = greatest(h_until, clock_timestamp() + new_term * interval '1 microsecond'),
           h_term = new_term, h_life = q->>'life'
     WHERE name = (SELECT name FROM public.leasehold_resource WHERE name = q->>'name'
                   FOR UPDATE SKIP LOCKED)
       AND h_claim = mine AND token = named AND NOT h_broken AND h_until > clock_timestamp()
       AND (granted + waiting = 0 OR due > clock_timestamp())
    RETURNING jsonb_build_object('is', 'alive', 'left',
                                 public.leasehold_us(h_until - clock_timestamp())) INTO a;
    IF FOUND THEN
      RETURN a;
    END IF;
  END IF;
  r := public.leasehold_open(q->>'name', wait, false);
  IF r.ord < 0 THEN
    RETURN jsonb_build_object('is', 'skipped');
  END IF;
  now := clock_timestamp();
  before := r;
  IF r.name IS NOT NULL THEN
    r := public.leasehold_settle(r, mine, now);
    c := public.leasehold_find(r, mine);
  END IF;
  IF c.claim IS NULL OR named <> c.token THEN
    a := jsonb_build_object('is', 'gone', 'how',
                            coalesce(public.leasehold_gone(r, mine, now), 'unknown'));
  ELSE
    c.term := new_term;
    c.life := q->>'life';
    IF c.token IS NULL THEN
      c.until := now + public.leasehold_span(c.place);
    ELSIF NOT c.broken THEN
      c.until := greatest(c.until, now + public.leasehold_span(new_term));
    END IF;
    IF r.h_claim = mine THEN
      r.h_term := c.term;
      r.h_life := c.life;
      r.h_until := c.until;
    ELSE
      UPDATE public.leasehold_claim
         SET term = c.term, life = c.life, until = c.until, home = (q->>'home')::bigint
       WHERE claim = mine;
      r.due := least(r.due, c.until);
    END IF;
    a := public.leasehold_answer(r, c, now);
    IF named IS NOT NULL AND a->>'is' = 'granted' THEN
      a := jsonb_build_object('is', 'alive', 'left', a->'left');
    END IF;
  END IF;
  IF r.name IS NOT NULL THEN
    PERFORM public.leasehold_save(r, before);
  END IF;
  RETURN a;
END $$;
