-- For cleaning. No step of a run changes the column, but for one that took longer than a tenth of the time to keep.
CREATE INDEX IF NOT EXISTS leasehold_idempotency_expires ON leasehold_idempotency (expires_us)
