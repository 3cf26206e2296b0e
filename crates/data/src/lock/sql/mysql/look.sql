-- What bounds a wait, what its end rolls back, and, where the server is a MariaDB, whether there is
-- a transaction. Reads no table: that would give the transaction its snapshot before its lock.
SELECT CAST(@@innodb_lock_wait_timeout AS SIGNED), CAST(@@innodb_rollback_on_timeout AS SIGNED),
  CAST(@@autocommit AS SIGNED) /*M!, CAST(@@in_transaction AS SIGNED) */;
