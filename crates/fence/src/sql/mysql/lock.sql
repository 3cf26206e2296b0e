-- Holds the row to COMMIT and reads it: resource, slot.
SELECT exclusive_epoch, exclusive_token, shared_epoch, shared_token
FROM leasehold_fence
WHERE resource = ? AND slot = ?
FOR UPDATE /*M!100300 WAIT 5 */
