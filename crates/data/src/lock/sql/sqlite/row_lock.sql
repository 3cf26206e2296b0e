-- ?1: the name. Takes the write lock of the whole file, as BEGIN IMMEDIATE does, whether or not the
-- row is there.
INSERT INTO leasehold_lock (name) VALUES (?1) ON CONFLICT (name) DO NOTHING;
