-- Answers, as JSON. Spans are microseconds.

-- A live claim of this name, wherever it stands; all null if there is none.
CREATE OR REPLACE FUNCTION public.leasehold_find(r public.leasehold_resource, p_claim uuid)
RETURNS public.leasehold_claim LANGUAGE plpgsql AS $$
DECLARE
  c public.leasehold_claim;
BEGIN
  IF r.h_claim = p_claim THEN
    c.resource := r.name;
    c.ord := r.h_ord;
    c.sub := 0;
    c.claim := r.h_claim;
    c.holder := r.h_holder;
    c.label := r.h_label;
    c.mode := 'exclusive';
    c.stands := 'exclusive';
    c.entered := r.h_entered;
    c.term := r.h_term;
    c.life := r.h_life;
    c.until := r.h_until;
    c.token := r.token;
    c.since := r.h_since;
    c.previous := r.h_previous;
    c.broken := r.h_broken;
    RETURN c;
  END IF;
  IF r.granted + r.waiting = 0 THEN
    RETURN NULL;
  END IF;
  SELECT * INTO c FROM public.leasehold_claim WHERE claim = p_claim AND resource = r.name;
  RETURN c;
END $$;

-- Who is in the way, and when that ends by itself.
CREATE OR REPLACE FUNCTION public.leasehold_busy(
  r public.leasehold_resource, after_loss bigint, now timestamptz
) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  c public.leasehold_claim;
  ends timestamptz := r.h_until;
BEGIN
  IF r.h_claim IS NOT NULL THEN
    c := public.leasehold_find(r, r.h_claim);
  END IF;
  IF r.granted > 0 THEN
    ends := least(ends, (SELECT min(until) FROM public.leasehold_claim
                          WHERE resource = r.name AND token IS NOT NULL));
    IF r.h_claim IS NULL THEN
      SELECT * INTO c FROM public.leasehold_claim
       WHERE resource = r.name AND token IS NOT NULL ORDER BY ord, sub LIMIT 1;
    END IF;
  END IF;
  RETURN jsonb_build_object(
    'is', 'busy', 'label', c.label, 'held_for', public.leasehold_us(now - c.since),
    'token', c.token, 'free_in', public.leasehold_us(
      coalesce(ends - now, public.leasehold_held_back(r, after_loss, now))));
END $$;

-- The state of a live claim; null if there is none.
CREATE OR REPLACE FUNCTION public.leasehold_answer(
  r public.leasehold_resource, c public.leasehold_claim, now timestamptz
) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  IF c.claim IS NULL THEN
    RETURN NULL;
  END IF;
  IF c.token IS NULL THEN
    RETURN public.leasehold_busy(r, c.after_loss, now) || jsonb_build_object(
      'is', 'waiting', 'ticket', c.ticket,
      'ahead', (SELECT count(*) FROM public.leasehold_claim
                 WHERE resource = r.name AND ord < c.ord)
               + CASE WHEN r.h_claim IS NULL THEN 0 ELSE 1 END);
  END IF;
  IF c.broken THEN
    RETURN jsonb_build_object('is', 'gone', 'how', 'broken');
  END IF;
  RETURN jsonb_build_object(
    'is', 'granted', 'token', c.token, 'left', public.leasehold_us(c.until - now),
    'slots', coalesce(to_jsonb(c.slots), '[]'), 'previous', c.previous);
END $$;
