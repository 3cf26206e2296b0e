-- What keeps GET_LOCK from excluding others.
SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'read_only', 'super_read_only',
  'innodb_read_only', 'group_replication_group_name', 'group_replication_single_primary_mode');
