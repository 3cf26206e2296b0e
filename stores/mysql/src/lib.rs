//! MySQL and MariaDB: leases in two tables, fair and fenced.
