-- The machine has booted since the times of this database were written. Its processes are gone,
-- but nothing moves for one term. :now, :wall_us and :boot are bound where they occur. Spans are cut to
-- their bounds, so that one damaged row does not keep the others from being used.

UPDATE meta SET boot = :boot, token_floor = max(token_floor, token_end);

-- Waiters are gone with their processes.
DELETE FROM claim WHERE token IS NULL;

UPDATE claim
   SET entered = :now, since = :now, until = :now + min(max(term, 0), 31622400000000000), life = 'term', live = 0, pid = 0;

DELETE FROM grave;

UPDATE record SET until = :now + 1000 * min(max(until_us - :wall_us, 0), 9000000000000);

UPDATE resource
   SET queued = (SELECT count(*) FROM claim WHERE claim.resource = resource.id),
       used_at = :now - 1000 * min(max(:wall_us - used_us, 0), 9000000000000),
       end_at = iif(end_at IS NULL, NULL, :now),
       buried_until = :now,
       past = x'',
       h_entered = iif(h_claim IS NULL, NULL, :now),
       h_since = iif(h_claim IS NULL, NULL, :now),
       h_until = iif(h_claim IS NULL, NULL, :now + min(max(h_term, 0), 31622400000000000)),
       h_life = iif(h_claim IS NULL, NULL, 'term'),
       h_live = iif(h_claim IS NULL, NULL, 0),
       h_pid = iif(h_claim IS NULL, NULL, 0);
