-- Refuses writes to a table by whoever shows no fencing token, or one that a newer holder has passed.
-- Read it, then run it by psql as whoever owns the table; running it again is harmless.
-- A writer that nobody can edit gets its token from outside, for all of its session:
--   PGOPTIONS="-c leasehold.mark=$LEASEHOLD_EPOCH:$LEASEHOLD_TOKEN" program
-- and one that can be edited for its transaction:
--   SELECT set_config('leasehold.mark', '42', true)
BEGIN;

{create_table}
-- Once a statement, before it: a newer holder's mark stops it before it has read or written a row.
-- With the rights of its owner, so that writers need none on leasehold_fence.
CREATE OR REPLACE FUNCTION leasehold_refuse_stale() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT
SET lock_timeout = '5s'
AS $leasehold$
DECLARE
    shown text := current_setting('leasehold.mark', true);
    parts text[] := regexp_match(shown, '^(?:([0-9]{1,10}):)?([0-9]{1,16})$');
    my_epoch bigint := coalesce(parts[1], '0')::bigint;
    my_token bigint := parts[2]::bigint;
    newest text;
BEGIN
    IF coalesce(shown, '') = '' THEN
        RAISE EXCEPTION USING ERRCODE = 'LH002',
            MESSAGE = format('%s takes no write without a fencing token', TG_ARGV[0]),
            HINT = 'take the lock, and show its token in the setting leasehold.mark';
    ELSIF parts IS NULL OR my_token = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'LH003',
            MESSAGE = format('the setting leasehold.mark holds no fencing token: %L', left(shown, 40)),
            HINT = 'want N or EPOCH:N';
    END IF;
    INSERT INTO leasehold_fence AS f (resource, slot, exclusive_epoch, exclusive_token)
    VALUES (TG_ARGV[0], -1, my_epoch, my_token)
    ON CONFLICT (resource, slot) DO UPDATE
    SET exclusive_epoch = excluded.exclusive_epoch, exclusive_token = excluded.exclusive_token
    WHERE (f.exclusive_token IS NULL
            OR (f.exclusive_epoch, f.exclusive_token)
                <= (excluded.exclusive_epoch, excluded.exclusive_token))
        AND (f.shared_token IS NULL
            OR (f.shared_epoch, f.shared_token)
                <= (excluded.exclusive_epoch, excluded.exclusive_token));
    IF NOT FOUND THEN
        SELECT CASE epoch WHEN 0 THEN token::text ELSE format('%s:%s', epoch, token) END INTO newest
        FROM leasehold_fence,
            LATERAL (VALUES (exclusive_epoch, exclusive_token), (shared_epoch, shared_token))
                AS marks (epoch, token)
        WHERE resource = TG_ARGV[0] AND slot = -1 AND token IS NOT NULL
        ORDER BY epoch DESC, token DESC LIMIT 1;
        RAISE EXCEPTION USING ERRCODE = 'LH001',
            MESSAGE = format('stale token %s refused: a holder with token %s has been here',
                shown, newest),
            HINT = 'roll back and stop: the lease has ended';
    END IF;
    RETURN NULL;
END
$leasehold$;

DROP TRIGGER IF EXISTS leasehold_fence ON {table};
CREATE TRIGGER leasehold_fence BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION leasehold_refuse_stale('{resource}');

COMMIT;
