-- Ends what has run out.
CREATE OR REPLACE FUNCTION public.leasehold_expire(r public.leasehold_resource, now timestamptz)
RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
DECLARE
  c public.leasehold_claim;
  row_ended boolean := coalesce(r.h_until <= now, false);
  last_how text;
  last_at timestamptz;
BEGIN
  IF NOT row_ended AND (r.granted + r.waiting = 0 OR r.due > now) THEN
    RETURN r;
  END IF;
  FOR c IN
    WITH ended AS (DELETE FROM public.leasehold_claim WHERE resource = r.name AND until <= now
                   RETURNING *)
    SELECT * FROM ended ORDER BY until
  LOOP
    PERFORM public.leasehold_bury(c.claim, CASE WHEN c.broken THEN 'broken' ELSE 'expired' END,
                                  now + public.leasehold_span(c.term));
    r.used_at := greatest(r.used_at, c.until);
    IF c.token IS NULL THEN
      r.waiting := r.waiting - 1;
      CONTINUE;
    END IF;
    r.granted := r.granted - 1;
    -- How a grant ended is noted once its last claim has.
    CONTINUE WHEN NOT row_ended AND r.h_ord = c.ord;
    PERFORM 1 FROM public.leasehold_claim
      WHERE resource = r.name AND ord = c.ord AND token IS NOT NULL;
    IF NOT FOUND THEN
      last_how := CASE WHEN c.broken THEN 'broken' ELSE 'expired' END;
      last_at := c.until;
    END IF;
  END LOOP;
  IF row_ended THEN
    PERFORM public.leasehold_bury(r.h_claim, CASE WHEN r.h_broken THEN 'broken' ELSE 'expired' END,
                                  now + public.leasehold_span(r.h_term));
    r.used_at := greatest(r.used_at, r.h_until);
    PERFORM 1 FROM public.leasehold_claim
      WHERE resource = r.name AND ord = r.h_ord AND token IS NOT NULL;
    IF NOT FOUND AND (last_at IS NULL OR last_at < r.h_until) THEN
      last_how := CASE WHEN r.h_broken THEN 'broken' ELSE 'expired' END;
      last_at := r.h_until;
    END IF;
    r := public.leasehold_vacate(r);
  END IF;
  IF last_at IS NOT NULL THEN
    r.end_how := last_how;
    r.end_at := last_at;
  END IF;
  r.due := (SELECT min(until) FROM public.leasehold_claim WHERE resource = r.name);
  RETURN r;
END $$;

CREATE OR REPLACE FUNCTION public.leasehold_vacate(r public.leasehold_resource)
RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
BEGIN
  r.h_claim := NULL;
  r.h_holder := NULL;
  r.h_label := NULL;
  r.h_ord := NULL;
  r.h_entered := NULL;
  r.h_since := NULL;
  r.h_until := NULL;
  r.h_term := NULL;
  r.h_life := NULL;
  r.h_previous := NULL;
  r.h_broken := NULL;
  RETURN r;
END $$;

-- The grant of the same holder that a claim re-enters; all null if there is none.
CREATE OR REPLACE FUNCTION public.leasehold_outer(
  r public.leasehold_resource, p_claim uuid, p_holder uuid, p_mode text, p_count integer,
  p_limit integer
) RETURNS public.leasehold_claim LANGUAGE plpgsql AS $$
DECLARE
  o public.leasehold_claim;
BEGIN
  IF r.h_holder = p_holder AND r.h_claim <> p_claim AND NOT r.h_broken AND p_mode <> 'permits' THEN
    o.ord := r.h_ord;
    o.stands := 'exclusive';
    o.stands_count := 0;
    o.token := r.token;
    o.previous := r.h_previous;
    RETURN o;
  END IF;
  IF r.granted = 0 THEN
    RETURN NULL;
  END IF;
  SELECT * INTO o FROM public.leasehold_claim
   WHERE resource = r.name AND token IS NOT NULL AND holder = p_holder AND claim <> p_claim
     AND NOT broken
     AND CASE stands
           WHEN 'exclusive' THEN p_mode IN ('exclusive', 'shared')
           WHEN 'shared' THEN p_mode = 'shared'
           ELSE p_mode = 'permits' AND p_limit = slot_limit AND p_count <= stands_count
                AND p_count <= cardinality(slots)
         END
   ORDER BY ord, sub LIMIT 1;
  RETURN o;
END $$;

CREATE OR REPLACE FUNCTION public.leasehold_next_sub(p_name text, p_ord bigint) RETURNS integer
LANGUAGE sql STABLE AS $$
  SELECT coalesce(max(sub), 0) + 1 FROM public.leasehold_claim WHERE resource = p_name AND ord = p_ord
$$;

-- The lowest free slots.
CREATE OR REPLACE FUNCTION public.leasehold_slots(p_name text, p_count integer, p_limit integer)
RETURNS integer[] LANGUAGE sql STABLE AS $$
  SELECT array_agg(slot ORDER BY slot) FROM (
    SELECT slot FROM generate_series(0, p_limit - 1) AS slot
     WHERE slot NOT IN (SELECT unnest(slots) FROM public.leasehold_claim
                         WHERE resource = p_name AND token IS NOT NULL AND slots IS NOT NULL)
     ORDER BY slot LIMIT p_count) AS free
$$;

-- How much longer a claim is held back because the grant before it ended uncleanly, or null. (One
-- expression, so that it is not planned anew at each call.)
CREATE OR REPLACE FUNCTION public.leasehold_held_back(
  r public.leasehold_resource, p_after_loss bigint, now timestamptz
) RETURNS interval LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN p_after_loss > 0 AND r.end_how <> 'released'
               AND r.end_at + public.leasehold_span(p_after_loss) > now
              THEN r.end_at + public.leasehold_span(p_after_loss) - now END
$$;

-- Ends what has run out and admits those who now fit. `caller` is the claim on whose behalf this is
-- done: it is granted its whole term, others a short first term, with a word to them.
CREATE OR REPLACE FUNCTION public.leasehold_settle(
  r public.leasehold_resource, caller uuid, now timestamptz
) RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
BEGIN
  r := public.leasehold_expire(r, now);
  IF r.waiting > 0 AND caller IS NOT NULL THEN
    r := public.leasehold_readmit(r, caller, now);
  END IF;
  IF r.waiting > 0 AND r.h_claim IS NULL THEN
    r := public.leasehold_admit(r, caller, now);
  END IF;
  RETURN r;
END $$;

-- Admits the caller's waiting claim if its holder has a grant that covers it.
CREATE OR REPLACE FUNCTION public.leasehold_readmit(
  r public.leasehold_resource, caller uuid, now timestamptz
) RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
DECLARE
  c public.leasehold_claim;
  o public.leasehold_claim;
  ends timestamptz;
BEGIN
  SELECT * INTO c FROM public.leasehold_claim
   WHERE claim = caller AND resource = r.name AND token IS NULL;
  IF NOT FOUND THEN
    RETURN r;
  END IF;
  o := public.leasehold_outer(r, caller, c.holder, c.mode, c.count, c.slot_limit);
  IF o.ord IS NULL THEN
    RETURN r;
  END IF;
  ends := now + public.leasehold_span(c.term);
  UPDATE public.leasehold_claim
     SET ord = o.ord, sub = public.leasehold_next_sub(r.name, o.ord), stands = o.stands,
         stands_count = o.stands_count, token = o.token, slots = o.slots[1:c.count], since = now,
         until = ends, previous = o.previous
   WHERE claim = caller;
  r.due := least(r.due, ends);
  r.waiting := r.waiting - 1;
  r.granted := r.granted + 1;
  RETURN r;
END $$;

-- Admits waiters in order while they fit, at most 64 for others than the caller.
CREATE OR REPLACE FUNCTION public.leasehold_admit(
  r public.leasehold_resource, caller uuid, now timestamptz
) RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
DECLARE
  w public.leasehold_claim;
  is_caller boolean;
  others_before boolean := r.granted > 0;
  permits_before bigint := 0;
  told integer := 0;
BEGIN
  IF r.granted > 0 THEN
    SELECT sum(stands_count) INTO permits_before FROM (
      SELECT DISTINCT ON (ord) stands, stands_count FROM public.leasehold_claim
       WHERE resource = r.name AND token IS NOT NULL ORDER BY ord, sub) AS standing
    HAVING NOT bool_or(stands = 'exclusive');
    IF NOT FOUND THEN
      RETURN r;
    END IF;
  END IF;
  FOR w IN SELECT * FROM public.leasehold_claim
            WHERE resource = r.name AND token IS NULL ORDER BY ord, sub
  LOOP
    is_caller := coalesce(w.claim = caller, false);
    EXIT WHEN told >= 64 OR NOT CASE w.mode
      WHEN 'exclusive' THEN NOT others_before
      WHEN 'shared' THEN permits_before = 0
      ELSE permits_before + w.count <= w.slot_limit
    END;
    -- Nobody passes one that is held back.
    EXIT WHEN public.leasehold_held_back(r, w.after_loss, now) IS NOT NULL;
    IF NOT is_caller AND w.term < 500000 THEN
      -- So short a term could be over before the word arrives.
      PERFORM public.leasehold_tell(w.home, jsonb_build_object('claim', w.claim));
      EXIT;
    END IF;
    r := public.leasehold_grant(r, w, is_caller, now);
    told := told + CASE WHEN is_caller THEN 0 ELSE 1 END;
    EXIT WHEN w.mode = 'exclusive';
    others_before := true;
    permits_before := permits_before + w.count;
  END LOOP;
  RETURN r;
END $$;

-- Grants a waiting claim.
CREATE OR REPLACE FUNCTION public.leasehold_grant(
  r public.leasehold_resource, w public.leasehold_claim, is_caller boolean, now timestamptz
) RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
DECLARE
  term bigint := CASE WHEN is_caller THEN w.term ELSE least(w.term, 3000000) END;
  ends timestamptz := now + public.leasehold_span(term);
  given integer[];
BEGIN
  r.token := public.leasehold_mint(r, now);
  r.waiting := r.waiting - 1;
  IF w.mode = 'exclusive' THEN
    DELETE FROM public.leasehold_claim WHERE claim = w.claim;
    r.h_claim := w.claim;
    r.h_holder := w.holder;
    r.h_label := w.label;
    r.h_ord := w.ord;
    r.h_entered := w.entered;
    r.h_since := now;
    r.h_until := ends;
    r.h_term := w.term;
    r.h_life := w.life;
    r.h_previous := coalesce(r.end_how, 'first');
    r.h_broken := false;
  ELSE
    IF w.mode = 'permits' THEN
      given := public.leasehold_slots(r.name, w.count, w.slot_limit);
    END IF;
    UPDATE public.leasehold_claim
       SET token = r.token, slots = given, until = ends, since = now,
           previous = coalesce(r.end_how, 'first')
     WHERE claim = w.claim;
    r.granted := r.granted + 1;
    r.due := least(r.due, ends);
  END IF;
  IF NOT is_caller THEN
    PERFORM public.leasehold_tell(w.home, jsonb_build_object(
      'claim', w.claim, 'ticket', w.ticket, 'token', r.token, 'term', term,
      'slots', coalesce(to_jsonb(given), '[]'), 'previous', coalesce(r.end_how, 'first')));
  END IF;
  RETURN r;
END $$;
