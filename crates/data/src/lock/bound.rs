//! The bound of a wait on PostgreSQL, and its removal that keeps the lock.

use std::time::Duration;

use leasehold_sql::{Class, Transaction, Value};

use super::statement::body;
use super::wait::millis;
use super::{Error, Result};

/// What bounded waits before.
pub(super) struct Before {
    of_lock: Value,
    of_statement: Value,
}

/// What a statement may take beside its wait: one that need not wait is never ended for being slow.
const WORK: Duration = Duration::from_secs(1);

/// Bounds the waits of statements to come: each wait by `lock_timeout`, all waits of one by
/// `statement_timeout`. Going back to a savepoint undoes it.
pub(super) async fn set<T: Transaction + Send + ?Sized>(
    tx: &mut T,
    at_most: Duration,
) -> Result<Before> {
    let statement = body(include_str!("sql/postgres/bound.sql"));
    let rows = tx
        .rows(statement, &[Value::Int(millis(at_most)), Value::Int(millis(at_most + WORK))])
        .await?;
    let row = rows.into_iter().next();
    let get = |at| row.as_ref().and_then(|row| row.get(at)).cloned().unwrap_or(Value::Null);
    Ok(Before { of_lock: get(0), of_statement: get(1) })
}

/// Puts back what was there before.
pub(super) async fn restore<T: Transaction + Send + ?Sized>(
    tx: &mut T,
    before: Before,
) -> Result<()> {
    let statement = body(include_str!("sql/postgres/unbound.sql"));
    tx.rows(statement, &[before.of_lock, before.of_statement]).await?;
    Ok(())
}

/// Whether a wait was ended by its bound, or by an operator who cancelled the statement.
pub(super) fn is_over(error: &leasehold_sql::Error) -> bool {
    error.class() == Class::Busy || error.code() == Some("57014")
}

/// Refuses a transaction whose reads are older than its lock.
pub(super) fn check_isolation(level: Option<&str>) -> Result<()> {
    match level {
        Some("repeatable read" | "serializable") => {
            let level = level.unwrap_or_default().to_uppercase();
            Err(Error::Isolation { level })
        }
        _ => Ok(()),
    }
}
