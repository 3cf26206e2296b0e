-- One call. `wait`: for a row that somebody has locked; without it the answer is then `skipped`.
CREATE OR REPLACE FUNCTION public.leasehold_step(q jsonb, wait boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
  CASE q->>'verb'
    WHEN 'enter' THEN RETURN public.leasehold_enter(q, wait);
    WHEN 'leave' THEN RETURN public.leasehold_leave(q, wait);
    WHEN 'renew' THEN RETURN public.leasehold_renew(q, wait);
    WHEN 'write' THEN RETURN public.leasehold_write(q, wait);
    WHEN 'break' THEN RETURN public.leasehold_break(q, wait);
    WHEN 'clean' THEN RETURN public.leasehold_clean(q);
  END CASE;
END $$;

-- All the calls of one message, in one transaction, in the order of their names (no two transactions
-- then wait for each other). Words for waiters are sent in a transaction of their own after the
-- commit: a commit that notifies holds a lock of the whole instance while it is written.
--
-- `lazy`: nothing is lost but a release if the server crashes, so the commit does not wait for it to
-- be written. Whatever grants is always waited for.
CREATE OR REPLACE PROCEDURE public.leasehold_serve(
  calls text, wait boolean, lazy boolean, INOUT answers text
) LANGUAGE plpgsql AS $$
DECLARE
  q jsonb;
  a jsonb := '[]';
  words text;
  word text;
  durable text := current_setting('synchronous_commit');
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    COMMIT;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  END IF;
  -- Plans are made once a session and go by the keys, whatever the tables held when they were made.
  PERFORM set_config('lock_timeout', '1000', true),
          set_config('plan_cache_mode', 'force_generic_plan', true),
          set_config('enable_seqscan', 'off', true);
  FOR q IN SELECT jsonb_array_elements(calls::jsonb) LOOP
    a := a || public.leasehold_step(q, wait);
  END LOOP;
  words := nullif(current_setting('leasehold.words', true), '');
  IF lazy AND words IS NULL THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF durable = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  answers := jsonb_build_object('at', public.leasehold_us(clock_timestamp()), 'all', a)::text;
  COMMIT;
  IF words IS NOT NULL THEN
    FOREACH word IN ARRAY string_to_array(rtrim(words, chr(10)), chr(10)) LOOP
      PERFORM pg_notify('leasehold_' || left(word, 16), substr(word, 17));
    END LOOP;
  END IF;
END $$;
