-- Ends a claim in whatever state it is, and hands over.
CREATE OR REPLACE FUNCTION public.leasehold_leave(q jsonb, wait boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  before public.leasehold_resource;
  mine uuid := (q->>'claim')::uuid;
  -- An enter of it may still be on its way, or wait for the row in another session: with a row
  -- made and locked here it sees what this leaves behind.
  unanswered boolean := q->'unanswered' IS NOT NULL;
  now timestamptz;
  how text;
BEGIN
  IF NOT unanswered THEN
    -- An exclusive holder that nobody waits for: all that decides stands in the one row.
    UPDATE public.leasehold_resource
       SET h_claim = NULL, h_holder = NULL, h_label = NULL, h_ord = NULL, h_entered = NULL,
           h_since = NULL, h_until = NULL, h_term = NULL, h_life = NULL, h_previous = NULL,
           h_broken = NULL, used_at = clock_timestamp(), end_at = clock_timestamp(),
           end_how = CASE WHEN h_broken THEN 'broken' ELSE 'released' END,
           past = substr(past, greatest(1, length(past) - 24 * 15 + 1)) || uuid_send(mine)
                  || int8send(public.leasehold_us(clock_timestamp()) + h_term)
     WHERE name = (SELECT name FROM public.leasehold_resource
                    WHERE name = q->>'name' AND h_claim = mine AND granted = 0 AND waiting = 0
                    FOR UPDATE SKIP LOCKED)
       AND h_claim = mine AND granted = 0 AND waiting = 0 AND h_until > clock_timestamp()
       AND position(uuid_send(mine) IN past) = 0;
    IF FOUND THEN
      RETURN jsonb_build_object('is', 'released', 'free', true);
    END IF;
  END IF;
  r := public.leasehold_open(q->>'name', wait, unanswered);
  IF r.ord < 0 THEN
    RETURN jsonb_build_object('is', 'skipped');
  END IF;
  now := clock_timestamp();
  before := r;
  r := public.leasehold_expire(r, now);
  IF r.name IS NOT NULL AND (public.leasehold_find(r, mine)).claim IS NOT NULL THEN
    r := public.leasehold_end(r, mine, 'released', unanswered, now);
    r := public.leasehold_settle(r, NULL, now);
    PERFORM public.leasehold_save(r, before);
    RETURN jsonb_build_object(
      'is', 'released', 'free', r.h_claim IS NULL AND r.granted = 0 AND r.waiting = 0);
  END IF;
  r := public.leasehold_settle(r, NULL, now);
  how := public.leasehold_gone(r, mine, now);
  IF unanswered THEN
    -- Barred for a term from now, also when it had ended some time ago.
    PERFORM public.leasehold_bury(mine, coalesce(how, 'released'),
                                  now + public.leasehold_span((q->>'term')::bigint));
    IF r.token = 0 AND r.granted + r.waiting = 0 THEN
      DELETE FROM public.leasehold_resource WHERE name = r.name;
      RETURN jsonb_build_object('is', 'gone', 'how', coalesce(how, 'released'));
    END IF;
    -- Whoever decides by an older version of the row does so in vain.
    r.ord := r.ord + 1;
  END IF;
  IF r.name IS NOT NULL THEN
    PERFORM public.leasehold_save(r, before);
  END IF;
  RETURN jsonb_build_object('is', 'gone', 'how', coalesce(how, CASE WHEN unanswered THEN 'released' ELSE 'unknown' END));
END $$;

-- Ends a live claim. The caller settles. `deep`: it is remembered however many are released after.
CREATE OR REPLACE FUNCTION public.leasehold_end(
  r public.leasehold_resource, p_claim uuid, how text, deep boolean, now timestamptz
) RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
DECLARE
  c public.leasehold_claim := public.leasehold_find(r, p_claim);
  at integer := position(uuid_send(p_claim) IN r.past);
  gone_at timestamptz := now + public.leasehold_span(c.term);
BEGIN
  IF r.h_claim = p_claim THEN
    r := public.leasehold_vacate(r);
  ELSE
    DELETE FROM public.leasehold_claim WHERE claim = p_claim;
    IF c.token IS NULL THEN
      r.waiting := r.waiting - 1;
    ELSE
      r.granted := r.granted - 1;
    END IF;
  END IF;
  IF c.token IS NOT NULL AND r.h_ord IS DISTINCT FROM c.ord THEN
    IF r.granted > 0 THEN
      PERFORM 1 FROM public.leasehold_claim
        WHERE resource = r.name AND ord = c.ord AND token IS NOT NULL;
    END IF;
    IF r.granted = 0 OR NOT FOUND THEN
      r.end_how := CASE WHEN c.broken THEN 'broken' ELSE how END;
      r.end_at := now;
    END IF;
  END IF;
  r.used_at := now;
  IF how = 'released' AND NOT deep THEN
    -- The latest 16 are remembered in the row, each once.
    IF at > 0 THEN
      r.past := overlay(r.past PLACING '' FROM at FOR 24);
    END IF;
    r.past := substr(r.past, greatest(1, length(r.past) - 24 * 15 + 1)) || uuid_send(p_claim)
              || int8send(public.leasehold_us(gone_at));
  ELSE
    PERFORM public.leasehold_bury(p_claim, how, gone_at);
  END IF;
  RETURN r;
END $$;
