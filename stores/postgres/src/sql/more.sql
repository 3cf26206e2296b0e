-- Keeps a small record with a name, guarded by a grant.
CREATE OR REPLACE FUNCTION public.leasehold_write(q jsonb, wait boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  before public.leasehold_resource;
  c public.leasehold_claim;
  mine uuid := (q->>'claim')::uuid;
  now timestamptz;
BEGIN
  r := public.leasehold_open(q->>'name', wait, false);
  IF r.ord < 0 THEN
    RETURN jsonb_build_object('is', 'skipped');
  END IF;
  now := clock_timestamp();
  before := r;
  IF r.name IS NOT NULL THEN
    r := public.leasehold_settle(r, NULL, now);
    PERFORM public.leasehold_save(r, before);
    c := public.leasehold_find(r, mine);
  END IF;
  IF c.token IS NULL OR c.broken THEN
    RETURN jsonb_build_object('is', 'gone', 'how', CASE WHEN c.broken THEN 'broken' ELSE
                              coalesce(public.leasehold_gone(r, mine, now), 'unknown') END);
  END IF;
  INSERT INTO public.leasehold_record (resource, value, token, until)
  VALUES (r.name, decode(q->>'value', 'hex'), c.token,
          now + public.leasehold_span((q->>'keep')::bigint))
  ON CONFLICT (resource) DO UPDATE
     SET value = excluded.value, token = excluded.token, until = excluded.until;
  RETURN jsonb_build_object('is', 'stored');
END $$;

-- An operator's force: marks grants as broken, and ends them with `now`.
CREATE OR REPLACE FUNCTION public.leasehold_break(q jsonb, wait boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  before public.leasehold_resource;
  c record;
  wanted bigint := (q->>'token')::bigint;
  marked bigint[] := '{}';
  held bigint[] := '{}';
  ids uuid[] := '{}';
  now timestamptz;
BEGIN
  r := public.leasehold_open(q->>'name', wait, false);
  IF r.ord < 0 THEN
    RETURN jsonb_build_object('is', 'skipped');
  END IF;
  IF r.name IS NULL THEN
    RETURN jsonb_build_object('is', 'nothing', 'tokens', '[]'::jsonb);
  END IF;
  now := clock_timestamp();
  before := r;
  r := public.leasehold_settle(r, NULL, now);
  FOR c IN SELECT r.h_ord AS ord, 0 AS sub, r.h_claim AS claim, r.token WHERE r.h_claim IS NOT NULL
           UNION ALL SELECT ord, sub, claim, token FROM public.leasehold_claim
                      WHERE resource = r.name AND token IS NOT NULL ORDER BY ord, sub
  LOOP
    held := held || c.token;
    CONTINUE WHEN wanted <> c.token;
    marked := marked || c.token;
    ids := ids || c.claim;
    IF c.claim = r.h_claim THEN
      r.h_broken := true;
    ELSE
      UPDATE public.leasehold_claim SET broken = true WHERE claim = c.claim;
    END IF;
  END LOOP;
  IF q->'now' IS NOT NULL THEN
    FOR c IN SELECT unnest(ids) AS claim LOOP
      r := public.leasehold_end(r, c.claim, 'broken', true, now);
      r := public.leasehold_settle(r, NULL, now);
    END LOOP;
  END IF;
  PERFORM public.leasehold_save(r, before);
  IF marked = '{}' THEN
    RETURN jsonb_build_object('is', 'nothing', 'tokens', to_jsonb(held));
  END IF;
  RETURN jsonb_build_object('is', 'marked', 'tokens', to_jsonb(marked));
END $$;

-- Forgets names of a page that were not used for long. A row that somebody has locked is in use.
CREATE OR REPLACE FUNCTION public.leasehold_clean(q jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  wanted integer := (q->>'limit')::integer;
  keep interval := public.leasehold_span((q->>'keep')::bigint);
  dry boolean := q->'dry' IS NOT NULL;
  seen integer := 0;
  last text;
  each text;
  cleaned text[] := '{}';
BEGIN
  FOR each IN SELECT name FROM public.leasehold_resource
               WHERE name >= q->>'prefix' AND name > q->>'after' ORDER BY name LIMIT wanted
  LOOP
    EXIT WHEN NOT starts_with(each, q->>'prefix');
    seen := seen + 1;
    last := each;
    IF public.leasehold_clean_one(each, keep, dry) THEN
      cleaned := cleaned || each;
    END IF;
  END LOOP;
  RETURN jsonb_build_object('is', 'cleaned', 'names', to_jsonb(cleaned),
                            'next', CASE WHEN seen = wanted THEN last END);
END $$;

CREATE OR REPLACE FUNCTION public.leasehold_clean_one(p_name text, keep interval, dry boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  r public.leasehold_resource;
  now timestamptz;
  at integer;
BEGIN
  IF dry THEN
    SELECT * INTO r FROM public.leasehold_resource WHERE name = p_name;
  ELSE
    r := public.leasehold_open(p_name, false, false);
  END IF;
  now := clock_timestamp();
  IF r.name IS NULL OR r.h_until > now OR greatest(r.used_at, r.h_until) + keep > now
     OR EXISTS (SELECT 1 FROM public.leasehold_claim
                 WHERE resource = p_name AND (until > now OR until + keep > now))
     OR EXISTS (SELECT 1 FROM public.leasehold_record WHERE resource = p_name AND until > now)
  THEN
    RETURN false;
  END IF;
  IF dry THEN
    RETURN true;
  END IF;
  -- What has run out and was not looked at since stays dead, and so does what was released.
  r := public.leasehold_expire(r, now);
  FOR at IN SELECT generate_series(1, length(r.past), 24) LOOP
    PERFORM public.leasehold_bury(encode(substr(r.past, at, 16), 'hex')::uuid, 'released',
      to_timestamp((('x' || encode(substr(r.past, at + 16, 8), 'hex'))::bit(64)::bigint)
                   / 1000000.0));
  END LOOP;
  DELETE FROM public.leasehold_record WHERE resource = p_name;
  DELETE FROM public.leasehold_resource WHERE name = p_name;
  -- Whoever takes this name anew mints above all that it ever had.
  UPDATE public.leasehold_meta SET token_floor = r.token WHERE token_floor < r.token;
  RETURN true;
END $$;
