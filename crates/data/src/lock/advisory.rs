//! Advisory locks of PostgreSQL that end with the caller's transaction.
//!
//! As [row locks](super::row), without a table and without a write: nothing is left of the lock, and
//! it may be shared. It is kept on a hash of its name: see [`Key`].
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold_data::lock::{Key, Wait, advisory};
//! # use leasehold_sql::Transaction;
//! # async fn f(tx: &mut (dyn Transaction + Send)) -> Result<(), leasehold_data::lock::Error> {
//! let nightly = Key::new("nightly")?;
//! advisory::lock(tx, &nightly, Wait::AtMost(Duration::from_secs(5))).await?;
//! // Read, decide and write in this transaction; its commit frees the lock.
//! # Ok(())
//! # }
//! ```
//!
//! A pooler in transaction mode does not mind it. What [row locks](super::row) say about locking
//! first, isolation, re-entry and cancel safety holds here too; an exclusive lock may be taken over a
//! shared one that the transaction has, and two who do that deadlock.
//!
//! MySQL and MariaDB have none that live in a transaction (`GET_LOCK` outlives it), and SQLite has
//! none at all: they are refused, and [row locks](super::row) are there.

use leasehold_sql::{Engine, Transaction, Value};

use super::statement::body;
use super::{Error, Key, Result, Wait, bound, savepoint};

/// How the lock is had: by one, or by all who share it.
#[derive(Clone, Copy)]
enum Mode {
    Exclusive,
    Shared,
}

impl Mode {
    fn try_statement(self) -> &'static str {
        body(match self {
            Mode::Exclusive => include_str!("sql/postgres/advisory_try.sql"),
            Mode::Shared => include_str!("sql/postgres/advisory_try_shared.sql"),
        })
    }

    fn wait_statement(self) -> &'static str {
        body(match self {
            Mode::Exclusive => include_str!("sql/postgres/advisory_wait.sql"),
            Mode::Shared => include_str!("sql/postgres/advisory_wait_shared.sql"),
        })
    }

    /// As `pg_locks` names it.
    fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "ExclusiveLock",
            Mode::Shared => "ShareLock",
        }
    }
}

/// Locks a key to the end of the transaction, for it alone.
///
/// # Errors
///
/// [`Error::Unsupported`] on MySQL and SQLite; [`Error::Busy`] or [`Error::WaitOver`] if another has
/// it; [`Error::OutsideTransaction`], [`Error::Aborted`], [`Error::Isolation`], [`Error::Deadlock`]
/// or [`Error::ConnectionLost`] for what is wrong with the transaction it was to be held in.
pub async fn lock<T>(tx: &mut T, key: &Key, wait: Wait) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    take(tx, key, Mode::Exclusive, wait).await
}

/// Locks a key to the end of the transaction, together with all who share it.
///
/// # Errors
///
/// As [`lock`].
pub async fn lock_shared<T>(tx: &mut T, key: &Key, wait: Wait) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    take(tx, key, Mode::Shared, wait).await
}

async fn take<T>(tx: &mut T, key: &Key, mode: Mode, wait: Wait) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    if tx.engine() != Engine::Postgres {
        return Err(Error::Unsupported {
            what: "this database has no advisory lock that ends with a transaction",
            instead: "lock a row: `lock::row::Rows`",
        });
    }
    savepoint::set(tx).await?;
    let taken = take_behind(tx, key, mode, wait).await;
    savepoint::end(tx, taken).await
}

async fn take_behind<T>(tx: &mut T, key: &Key, mode: Mode, wait: Wait) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let left = wait.begin();
    let values = [Value::Int(key.number())];
    let answer = tx.rows(mode.try_statement(), &values).await?;
    let answer = answer.first();
    bound::check_isolation(answer.and_then(|row| row.text(1)))?;
    if answer.and_then(|row| row.int(0)) == Some(1) {
        return Ok(());
    }
    let Some(time) = left.time() else { return Err(wait.refused(key.shown(), false)) };
    let before = bound::set(tx, time).await?;
    match tx.rows(mode.wait_statement(), &values).await {
        Ok(_) => return bound::restore(tx, before).await,
        Err(error) if bound::is_over(&error) => {}
        Err(error) => return Err(error.into()),
    }
    // The lock may be granted just as the wait for it ends: the server is asked, not the error.
    savepoint::back(tx).await?;
    if is_held(tx, key, mode).await? {
        return Ok(());
    }
    Err(wait.refused(key.shown(), false))
}

async fn is_held<T>(tx: &mut T, key: &Key, mode: Mode) -> Result<bool>
where
    T: Transaction + Send + ?Sized,
{
    let statement = body(include_str!("sql/postgres/advisory_held.sql"));
    let values = [Value::Int(key.number()), Value::from(mode.word())];
    let rows = tx.rows(statement, &values).await?;
    Ok(rows.first().and_then(|row| row.int(0)).is_some_and(|count| count > 0))
}
