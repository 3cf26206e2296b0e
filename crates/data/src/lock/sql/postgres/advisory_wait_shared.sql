-- $1: the key. Waits for it, and locks it to the end of the transaction.
SELECT pg_advisory_xact_lock_shared($1::int8)::text, current_setting('transaction_isolation');
