//! The seam: two verbs that run one statement.

use std::future::Future;
use std::pin::Pin;

use crate::{Result, Row, Value};

/// What a statement answers, in time.
///
/// A driver that blocks has done its work before it returns this.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Whose SQL a transaction speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Engine {
    /// PostgreSQL: parameters are `$1`, `$2`, …
    Postgres,
    /// MySQL and MariaDB: parameters are `?`, in the order of their values.
    Mysql,
    /// SQLite: parameters are `?1`, `?2`, …
    Sqlite,
}

/// A transaction that the caller began and will commit or roll back.
///
/// Implemented for the transactions of the drivers, each behind a feature named by the driver's
/// version. Implement it for another driver in some thirty lines: run one statement, turn values
/// and errors over.
///
/// Cancel safety: a dropped answer leaves the statement's outcome unknown, as with the driver
/// itself; roll the transaction back.
pub trait Transaction {
    /// Whose SQL it speaks.
    fn engine(&self) -> Engine;

    /// Runs one statement that answers rows. Every column must be an integer of 64 bits, a text,
    /// a row of bytes, or NULL: cast in the statement where it is not.
    ///
    /// # Errors
    ///
    /// What the database or the driver said, with its [`Class`](crate::Class).
    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>>;

    /// Runs one statement and tells how many rows it matched.
    ///
    /// Matched, not changed: MySQL tells the one or the other, as its connection was opened with
    /// `CLIENT_FOUND_ROWS` or not. Write statements whose every matched row changes.
    ///
    /// # Errors
    ///
    /// What the database or the driver said, with its [`Class`](crate::Class).
    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64>;
}
