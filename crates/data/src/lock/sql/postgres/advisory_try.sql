-- $1: the key. 1 if it is locked now, to the end of the transaction; 0 if another has it.
SELECT pg_try_advisory_xact_lock($1::int8)::int::int8, current_setting('transaction_isolation');
