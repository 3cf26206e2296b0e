-- $1, $2: the lock_timeout and the statement_timeout that were there before.
SELECT set_config('lock_timeout', $1::text, true), set_config('statement_timeout', $2::text, true);
