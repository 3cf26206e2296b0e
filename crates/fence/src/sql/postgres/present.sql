-- Shows a mark to the trigger of a protected table, until the transaction ends.
SELECT set_config('leasehold.mark', $1, true)
