//! Locks that the database of the caller keeps.
//!
//! | | lives as long as | on | tokens, terms |
//! |---|---|---|---|
//! | [`row`] | the caller's transaction | PostgreSQL, MySQL, MariaDB; SQLite: its one write lock | not needed: lock, fence and write commit together |
//! | [`advisory`] | the caller's transaction | PostgreSQL | not needed |
//! | `session` | a connection of its own | PostgreSQL; MySQL and MariaDB by `GET_LOCK` | **none**: it is lost with its connection, and a late write is not refused |
//!
//! The first two are for work inside the database, the shorter the better. Where the work is
//! outside, or the database is reached through a pooler, Galera or a proxy, or a late write would
//! hurt, take a lease of leasehold and a fence instead.

pub mod advisory;
pub mod row;
#[cfg(any(feature = "mysql_async-0_37", feature = "tokio-postgres-0_7"))]
pub mod session;

mod bound;
mod error;
mod key;
mod savepoint;
mod statement;
mod wait;

pub use error::{Error, Result};
pub use key::Key;
pub use wait::Wait;
