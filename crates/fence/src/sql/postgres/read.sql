-- The marks as they are, to show: $1 resource, $2 slot.
SELECT exclusive_epoch, exclusive_token, shared_epoch, shared_token
FROM leasehold_fence
WHERE resource = $1 AND slot = $2
