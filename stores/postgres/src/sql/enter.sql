-- Claims a name.
CREATE OR REPLACE FUNCTION public.leasehold_enter(q jsonb, wait boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  before public.leasehold_resource;
  unjoined public.leasehold_resource;
  c public.leasehold_claim := public.leasehold_asked(q);
  now timestamptz;
  a jsonb;
  how text;
BEGIN
  IF c.place IS NULL THEN
    a := public.leasehold_glance(c);
    IF a IS NOT NULL THEN
      RETURN a;
    END IF;
  END IF;
  IF c.mode = 'exclusive' THEN
    a := public.leasehold_take(c);
    IF a IS NOT NULL THEN
      RETURN a;
    END IF;
  END IF;
  r := public.leasehold_open(c.resource, wait, true);
  IF r.ord < 0 THEN
    RETURN jsonb_build_object('is', 'skipped');
  END IF;
  now := clock_timestamp();
  before := r;
  r := public.leasehold_settle(r, c.claim, now);
  how := public.leasehold_gone(r, c.claim, now);
  IF how IS NOT NULL THEN
    a := jsonb_build_object('is', 'gone', 'how', how);
  ELSE
    a := public.leasehold_answer(r, public.leasehold_find(r, c.claim), now);
  END IF;
  IF a IS NULL THEN
    a := public.leasehold_refusal(r, c);
  END IF;
  IF a IS NULL THEN
    unjoined := r;
    r := public.leasehold_join(r, c, now);
    a := public.leasehold_answer(r, public.leasehold_find(r, c.claim), now);
    IF c.place IS NULL AND a->>'is' = 'waiting' THEN
      DELETE FROM public.leasehold_claim WHERE claim = c.claim;
      r := unjoined;
      IF r.h_claim IS NULL AND r.granted = 0 THEN
        r.used_at := now; -- it is not idle: it is held back
      END IF;
      a := public.leasehold_busy(r, c.after_loss, now);
    END IF;
  END IF;
  PERFORM public.leasehold_save(r, before);
  RETURN a;
END $$;

-- The claim that a call asks for.
CREATE OR REPLACE FUNCTION public.leasehold_asked(q jsonb) RETURNS public.leasehold_claim
LANGUAGE plpgsql AS $$
DECLARE
  c public.leasehold_claim;
BEGIN
  c.resource := q->>'name';
  c.claim := (q->>'claim')::uuid;
  c.holder := (q->>'holder')::uuid;
  c.label := q->>'label';
  c.mode := q->>'mode';
  c.count := coalesce((q->>'count')::integer, 0);
  c.slot_limit := coalesce((q->>'limit')::integer, 0);
  c.term := (q->>'term')::bigint;
  c.life := q->>'life';
  c.after_loss := coalesce((q->>'after_loss')::bigint, 0);
  c.place := (q->>'place')::bigint;
  c.home := (q->>'home')::bigint;
  RETURN c;
END $$;

-- Grants an exclusive claim where nobody is, as take.sql does. Null where that takes a closer look.
CREATE OR REPLACE FUNCTION public.leasehold_take(c public.leasehold_claim) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  taken record;
BEGIN
  UPDATE public.leasehold_resource AS r
     SET token = greatest(r.token + 1, public.leasehold_us(clock_timestamp())),
         ord = r.ord + 1, used_at = clock_timestamp(),
         h_claim = c.claim, h_holder = c.holder, h_label = c.label, h_ord = r.ord + 1,
         h_entered = clock_timestamp(), h_since = clock_timestamp(),
         h_until = clock_timestamp() + c.term * interval '1 microsecond', h_term = c.term,
         h_life = c.life, h_previous = coalesce(r.end_how, 'first'), h_broken = false
    FROM (SELECT s.name, s.xmin AS seen
            FROM public.leasehold_resource AS s JOIN public.leasehold_resource AS f ON f.name = s.name
           WHERE s.name = c.resource AND s.h_claim IS NULL AND s.granted = 0 AND s.waiting = 0
             AND s.token BETWEEN 1 AND 9007199254740990
             AND (c.after_loss = 0 OR s.end_how IS NULL OR s.end_how = 'released')
             AND position(uuid_send(c.claim) IN s.past) = 0
             AND NOT EXISTS (SELECT 1 FROM public.leasehold_grave AS g WHERE g.claim = c.claim)
             FOR UPDATE OF f SKIP LOCKED) AS a
   WHERE r.name = a.name AND r.xmin = a.seen
  RETURNING r.token, r.h_previous INTO taken;
  IF FOUND THEN
    RETURN jsonb_build_object('is', 'granted', 'token', taken.token, 'left', c.term,
                              'slots', '[]'::jsonb, 'previous', taken.h_previous);
  END IF;
  RETURN NULL;
END $$;

-- Says busy to a claim that does not queue where a plain read shows that others are in its way, so
-- that a try that fails writes nothing; null where that takes a closer look.
CREATE OR REPLACE FUNCTION public.leasehold_glance(c public.leasehold_claim) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  now timestamptz;
  others bigint;
BEGIN
  SELECT * INTO r FROM public.leasehold_resource WHERE name = c.resource;
  now := clock_timestamp();
  IF NOT FOUND OR r.h_claim IS NULL AND r.granted = 0
     OR r.h_until <= now OR r.h_holder = c.holder OR r.h_broken AND r.h_claim = c.claim
     OR public.leasehold_gone(r, c.claim, now) IS NOT NULL
  THEN
    RETURN NULL;
  END IF;
  IF r.h_claim IS NOT NULL AND c.mode <> 'permits' AND r.granted = 0 THEN
    RETURN public.leasehold_busy(r, c.after_loss, now);
  END IF;
  IF r.h_claim IS NULL AND c.mode <> 'shared' THEN
    -- Those that re-enter add nothing.
    SELECT CASE c.mode WHEN 'exclusive' THEN count(*)
                       ELSE sum(stands_count) FILTER (WHERE is_first) + c.count - c.slot_limit END
      INTO others
      FROM (SELECT *, row_number() OVER (PARTITION BY ord ORDER BY sub) = 1 AS is_first
              FROM public.leasehold_claim WHERE resource = r.name AND token IS NOT NULL) AS held
    HAVING bool_and(until > now AND holder <> c.holder AND claim <> c.claim
                    AND (mode = 'permits') = (c.mode = 'permits')
                    AND slot_limit = c.slot_limit);
    IF others > 0 THEN
      RETURN public.leasehold_busy(r, c.after_loss, now);
    END IF;
  END IF;
  RETURN NULL;
END $$;

-- Why a new claim cannot stand here, if so.
CREATE OR REPLACE FUNCTION public.leasehold_refusal(
  r public.leasehold_resource, c public.leasehold_claim
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  there integer := CASE WHEN r.h_claim IS NULL THEN NULL ELSE 0 END; -- the limit, 0 of a lock
BEGIN
  IF r.granted + r.waiting > 0 AND there IS NULL THEN
    SELECT slot_limit INTO there FROM public.leasehold_claim WHERE resource = r.name LIMIT 1;
  END IF;
  IF there <> c.slot_limit THEN
    RETURN jsonb_build_object('is', 'refused', 'why', 'kind', 'limit', there);
  END IF;
  IF c.mode = 'exclusive' AND r.granted > 0 THEN
    PERFORM 1 FROM public.leasehold_claim
      WHERE resource = r.name AND token IS NOT NULL AND holder = c.holder AND stands = 'shared';
    IF FOUND THEN
      RETURN jsonb_build_object('is', 'refused', 'why', 'upgrade');
    END IF;
  END IF;
  IF r.granted + r.waiting >= 10000 THEN
    RETURN jsonb_build_object('is', 'refused', 'why', 'full');
  END IF;
  RETURN NULL;
END $$;

-- Puts a new claim at the end of the queue and admits it if it fits. A plain exclusive claim where
-- nobody else is never leaves the row.
CREATE OR REPLACE FUNCTION public.leasehold_join(
  r public.leasehold_resource, c public.leasehold_claim, now timestamptz
) RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
BEGIN
  r.ord := r.ord + 1;
  r.used_at := now;
  IF c.mode = 'exclusive' AND r.h_claim IS NULL AND r.granted + r.waiting = 0
     AND public.leasehold_held_back(r, c.after_loss, now) IS NULL
  THEN
    r.token := public.leasehold_mint(r, now);
    r.h_claim := c.claim;
    r.h_holder := c.holder;
    r.h_label := c.label;
    r.h_ord := r.ord;
    r.h_entered := now;
    r.h_since := now;
    r.h_until := now + public.leasehold_span(c.term);
    r.h_term := c.term;
    r.h_life := c.life;
    r.h_previous := coalesce(r.end_how, 'first');
    r.h_broken := false;
    RETURN r;
  END IF;
  c.ord := r.ord;
  c.ticket := r.ord;
  c.sub := 0;
  c.stands := c.mode;
  c.stands_count := c.count;
  c.entered := now;
  -- The place of a claim that does not queue does not outlive this transaction.
  c.place := coalesce(c.place, 3000000);
  c.until := now + public.leasehold_span(c.place);
  c.broken := false;
  INSERT INTO public.leasehold_claim SELECT c.*;
  r.waiting := r.waiting + 1;
  r.due := least(r.due, c.until);
  RETURN public.leasehold_settle(r, c.claim, now);
END $$;
