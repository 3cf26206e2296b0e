-- Two services that make the table at one time: the second waits for the first, and finds it made.
SELECT 1::bigint FROM pg_advisory_xact_lock(hashtext('leasehold_idempotency'))
