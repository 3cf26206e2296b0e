
-- Tables of an older version are brought to this one, with all that is in them.
UPDATE leasehold_meta SET version = 1 WHERE version < 1;
