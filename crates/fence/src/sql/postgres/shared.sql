-- Checks a shared access and raises its mark, in one step that holds the row to COMMIT.
-- $1 resource, $2 slot, $3 epoch, $4 token. Answers 1 if it passed, 0 if not.
-- The wait for the row is bounded, and the transaction's own bound is put back.
WITH bound AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS was,
        set_config('lock_timeout', '5s', true) AS is_now
), raised AS (
    INSERT INTO leasehold_fence AS f (resource, slot, shared_epoch, shared_token)
    SELECT $1, $2, $3, $4 FROM bound WHERE bound.is_now IS NOT NULL
    ON CONFLICT (resource, slot) DO UPDATE
    SET shared_token = CASE
            WHEN (f.shared_epoch, f.shared_token) > (excluded.shared_epoch, excluded.shared_token)
            THEN f.shared_token ELSE excluded.shared_token END,
        shared_epoch = greatest(f.shared_epoch, excluded.shared_epoch)
    WHERE (f.exclusive_epoch IS NULL AND f.exclusive_token IS NULL
            OR f.exclusive_epoch >= 0 AND f.exclusive_token > 0
            AND (f.exclusive_epoch, f.exclusive_token)
                <= (excluded.shared_epoch, excluded.shared_token))
        AND (f.shared_epoch IS NULL AND f.shared_token IS NULL
            OR f.shared_epoch BETWEEN 0 AND 4294967295
            AND f.shared_token BETWEEN 1 AND 9007199254740991)
    RETURNING 1 AS passed
)
SELECT COALESCE(raised.passed, 0), set_config('lock_timeout', bound.was, true)
FROM bound LEFT JOIN raised ON true
