//! PostgreSQL: leases in two tables, fair, woken and fenced.
