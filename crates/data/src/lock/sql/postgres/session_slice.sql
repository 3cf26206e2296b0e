-- $1: milliseconds that the next wait for a lock may take.
SELECT set_config('lock_timeout', $1::int8::text, false);
