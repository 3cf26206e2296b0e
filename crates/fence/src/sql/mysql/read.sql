-- The marks as they are, to show: resource, slot.
SELECT exclusive_epoch, exclusive_token, shared_epoch, shared_token
FROM leasehold_fence
WHERE resource = ? AND slot = ?
