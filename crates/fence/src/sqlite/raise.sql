-- Writes raised marks, under the write lock.
UPDATE main.leasehold_fence
SET exclusive_epoch = :exclusive_epoch, exclusive_token = :exclusive_token,
    shared_epoch = :shared_epoch, shared_token = :shared_token
WHERE resource = :resource AND slot = :slot;
