-- Sets the marks that were checked, under the write lock: ?1 resource, ?2 slot, then the marks.
UPDATE main.leasehold_fence
SET exclusive_epoch = ?3, exclusive_token = ?4, shared_epoch = ?5, shared_token = ?6
WHERE resource = ?1 AND slot = ?2
