-- Takes the database's write lock, whether or not it changes anything, and makes sure of the row.
INSERT INTO main.leasehold_fence (resource, slot)
VALUES (:resource, :slot)
ON CONFLICT (resource, slot) DO NOTHING;
