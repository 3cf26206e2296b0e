-- One name while a verb decides on it: opened (locked), settled, saved. Each function is called with
-- the row as it is to be saved, and gives it back changed.

CREATE OR REPLACE FUNCTION public.leasehold_us(at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS
$$ SELECT (extract(epoch FROM at) * 1000000)::bigint $$;

CREATE OR REPLACE FUNCTION public.leasehold_us(span interval) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT (extract(epoch FROM span) * 1000000)::bigint $$;

CREATE OR REPLACE FUNCTION public.leasehold_span(us bigint) RETURNS interval LANGUAGE sql IMMUTABLE AS
$$ SELECT us * interval '1 microsecond' $$;

-- Locks the row of a name in a statement of its own: what is read later is what was committed by
-- then. Without `wait`, a row that somebody has locked is skipped (ord is then -1). A name without a
-- row gets one if `make`, else all is null.
CREATE OR REPLACE FUNCTION public.leasehold_open(p_name text, wait boolean, make boolean)
RETURNS public.leasehold_resource LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
BEGIN
  FOR tries IN 1..100 LOOP
    IF wait THEN
      SELECT * INTO r FROM public.leasehold_resource WHERE name = p_name FOR UPDATE;
    ELSE
      SELECT * INTO r FROM public.leasehold_resource WHERE name = p_name FOR UPDATE SKIP LOCKED;
    END IF;
    IF FOUND THEN
      RETURN r;
    END IF;
    IF NOT wait THEN
      PERFORM 1 FROM public.leasehold_resource WHERE name = p_name;
      IF FOUND THEN
        r.ord := -1;
        RETURN r;
      END IF;
    END IF;
    IF NOT make THEN
      RETURN NULL;
    END IF;
    -- Orders begin above all that a cleaned row of this name ever gave.
    INSERT INTO public.leasehold_resource
           (name, token, ord, granted, waiting, used_at, past)
    VALUES (p_name, 0, public.leasehold_us(clock_timestamp()), 0, 0, clock_timestamp(), '')
    ON CONFLICT DO NOTHING;
  END LOOP;
  RAISE EXCEPTION 'the row of a name is made and removed all the time' USING ERRCODE = 'LH002';
END $$;

CREATE OR REPLACE FUNCTION public.leasehold_save(
  r public.leasehold_resource, before public.leasehold_resource
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF r IS NOT DISTINCT FROM before THEN
    RETURN;
  END IF;
  UPDATE public.leasehold_resource
     SET token = r.token, ord = r.ord, granted = r.granted, waiting = r.waiting, due = r.due,
         used_at = r.used_at, end_how = r.end_how, end_at = r.end_at, past = r.past,
         h_claim = r.h_claim, h_holder = r.h_holder, h_label = r.h_label, h_ord = r.h_ord,
         h_entered = r.h_entered, h_since = r.h_since, h_until = r.h_until, h_term = r.h_term,
         h_life = r.h_life, h_previous = r.h_previous, h_broken = r.h_broken
   WHERE name = r.name;
END $$;

-- The next token: above all before it, and not below the epoch's microseconds.
CREATE OR REPLACE FUNCTION public.leasehold_mint(r public.leasehold_resource, now timestamptz)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  minted bigint := greatest(r.token + 1, public.leasehold_us(now));
BEGIN
  IF r.token = 0 THEN
    SELECT greatest(minted, token_floor + 1) INTO minted FROM public.leasehold_meta;
  END IF;
  IF minted > 9007199254740991 THEN
    RAISE EXCEPTION 'tokens are used up' USING ERRCODE = 'LH001';
  END IF;
  RETURN minted;
END $$;

-- Remembers an ended or barred claim, and forgets a few that need not be remembered any more.
CREATE OR REPLACE FUNCTION public.leasehold_bury(p_claim uuid, p_how text, p_until timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.leasehold_grave (claim, how, until) VALUES (p_claim, p_how, p_until)
  ON CONFLICT (claim) DO UPDATE
     SET how = excluded.how, until = greatest(leasehold_grave.until, excluded.until);
  DELETE FROM public.leasehold_grave
   WHERE claim IN (SELECT claim FROM public.leasehold_grave WHERE until <= clock_timestamp()
                   ORDER BY until LIMIT 8 FOR UPDATE SKIP LOCKED);
END $$;

-- How a claim has ended that is not there any more; null if that is not known.
CREATE OR REPLACE FUNCTION public.leasehold_gone(r public.leasehold_resource, p_claim uuid, now timestamptz)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  at integer := position(uuid_send(p_claim) IN r.past);
  until_us bigint;
BEGIN
  IF at > 0 AND at % 24 = 1 THEN
    until_us := ('x' || encode(substr(r.past, at + 16, 8), 'hex'))::bit(64)::bigint;
    IF until_us > public.leasehold_us(now) THEN
      RETURN 'released';
    END IF;
  END IF;
  RETURN (SELECT how FROM public.leasehold_grave WHERE claim = p_claim AND until > now);
END $$;

-- Notes a word for the process of a waiter; it is sent after the commit.
CREATE OR REPLACE FUNCTION public.leasehold_tell(home bigint, word jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('leasehold.words', concat(
    current_setting('leasehold.words', true), lpad(to_hex(home), 16, '0'), word, chr(10)), true);
END $$;
