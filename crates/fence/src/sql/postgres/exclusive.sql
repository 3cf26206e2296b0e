-- Checks an exclusive access and raises its mark, in one step that holds the row to COMMIT.
-- $1 resource, $2 slot, $3 epoch, $4 token. Answers 1 if it passed, 0 if not.
-- It writes even where the mark stays as it is: at REPEATABLE READ whoever began before an earlier
-- access ended must be told so (40001), and a lock alone tells nobody.
-- The wait for the row is bounded, and the transaction's own bound is put back.
WITH bound AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS was,
        set_config('lock_timeout', '5s', true) AS is_now
), raised AS (
    INSERT INTO leasehold_fence AS f (resource, slot, exclusive_epoch, exclusive_token)
    SELECT $1, $2, $3, $4 FROM bound WHERE bound.is_now IS NOT NULL
    ON CONFLICT (resource, slot) DO UPDATE
    SET exclusive_epoch = excluded.exclusive_epoch, exclusive_token = excluded.exclusive_token
    WHERE (f.exclusive_epoch IS NULL AND f.exclusive_token IS NULL
            OR f.exclusive_epoch >= 0 AND f.exclusive_token > 0
            AND (f.exclusive_epoch, f.exclusive_token)
                <= (excluded.exclusive_epoch, excluded.exclusive_token))
        AND (f.shared_epoch IS NULL AND f.shared_token IS NULL
            OR f.shared_epoch >= 0 AND f.shared_token > 0
            AND (f.shared_epoch, f.shared_token)
                <= (excluded.exclusive_epoch, excluded.exclusive_token))
    RETURNING 1 AS passed
)
SELECT COALESCE(raised.passed, 0), set_config('lock_timeout', bound.was, true)
FROM bound LEFT JOIN raised ON true
