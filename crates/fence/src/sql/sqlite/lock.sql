-- Takes the database's write lock, whether or not it changes anything, and makes sure of the row.
INSERT INTO main.leasehold_fence (resource, slot)
VALUES (?1, ?2)
ON CONFLICT (resource, slot) DO NOTHING
