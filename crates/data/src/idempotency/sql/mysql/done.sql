-- Scope, key, fingerprint, status, head, body, keep in us. Nothing here is a term, so the start of the statement is
-- time enough.
INSERT INTO leasehold_idempotency
    (scope, request_key, fingerprint, try_id, state, token, attempt, runs_until_us, met, status, head, body, expires_us)
VALUES (?, ?, ?, '', 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 1, 0, 0, ?, ?, ?,
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + ?)
