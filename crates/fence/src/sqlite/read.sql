-- The marks of one resource.
SELECT exclusive_epoch, exclusive_token, shared_epoch, shared_token
FROM main.leasehold_fence
WHERE resource = :resource AND slot = :slot;
