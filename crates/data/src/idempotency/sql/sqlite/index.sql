-- For cleaning.
CREATE INDEX IF NOT EXISTS leasehold_idempotency_expires ON leasehold_idempotency (expires_us)
