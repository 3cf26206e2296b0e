-- Holds the row to COMMIT and reads it: $1 resource, $2 slot. Four times NULL where there is none.
WITH bound AS MATERIALIZED (
    SELECT current_setting('lock_timeout') AS was,
        set_config('lock_timeout', '5s', true) AS is_now
)
SELECT f.exclusive_epoch, f.exclusive_token, f.shared_epoch, f.shared_token,
    set_config('lock_timeout', bound.was, true)
FROM bound LEFT JOIN LATERAL (
    SELECT exclusive_epoch, exclusive_token, shared_epoch, shared_token
    FROM leasehold_fence
    WHERE bound.is_now IS NOT NULL AND resource = $1 AND slot = $2
    FOR UPDATE
) AS f ON true
