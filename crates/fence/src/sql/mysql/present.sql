-- Shows a mark to the trigger of a protected table, until it is taken back or the session is reset.
SET @leasehold_mark = ?
