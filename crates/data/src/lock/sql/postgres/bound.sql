-- $1, $2: milliseconds. Bounds each wait for a lock in this transaction, and each statement; tells
-- what bounded them before. A statement_timeout that is shorter stays.
WITH was AS MATERIALIZED (
  SELECT current_setting('lock_timeout') AS of_lock, current_setting('statement_timeout') AS of_statement
)
SELECT was.of_lock, was.of_statement,
  set_config('lock_timeout', $1::int8::text, true),
  set_config('statement_timeout',
    CASE WHEN extract(epoch FROM was.of_statement::interval) * 1000 BETWEEN 1 AND $2::int8
      THEN was.of_statement ELSE $2::int8::text END, true)
FROM was;
