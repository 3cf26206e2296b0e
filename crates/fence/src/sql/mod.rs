//! The fence in the caller's own transaction: PostgreSQL, MySQL and MariaDB, SQLite.
//!
//! What it means: [`enter`] refuses a mark that a conflicting newer one has passed, raises it
//! otherwise, and holds the resource's row of `leasehold_fence` to COMMIT. So nothing can come
//! between the check and the caller's writes, and an old holder's transaction and a new one's follow
//! one another. Check, mark and write commit or vanish together.
//!
//! Call it **first in each transaction**, before the first read: an old holder's write could
//! otherwise land between that read and the write computed from it. At REPEATABLE READ and above,
//! PostgreSQL refuses a transaction that began to read before an earlier holder was done, and
//! [`enter`] answers [`ErrorKind::Restart`]. MySQL does not tell (MariaDB does, with
//! `innodb_snapshot_isolation`): there, never begin `WITH CONSISTENT SNAPSHOT`.
//!
//! ```
//! use leasehold_fence::{Access, Mark, Resource, Token, sql};
//! use leasehold_sql::Transaction;
//!
//! /// `tx` is a transaction of tokio-postgres, sqlx, mysql_async or rusqlite.
//! async fn withdraw(
//!     tx: &mut (impl Transaction + ?Sized),
//!     mine: Mark, // what the lock gave with the lease
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     sql::enter(tx, &Resource::new("account/7")?, Access::Exclusive, mine).await?;
//!     // Read and write here, and commit.
//!     Ok(())
//! }
//! ```
//!
//! - [`guard`] checks once more, far from where the transaction began.
//! - [`Update`] is the fence without a guard row: one conditional UPDATE of a row that carries the
//!   mark of its last writer.
//! - [`protection`] makes a trigger that refuses the late in writers nobody can edit; [`present`] shows
//!   it the mark.
//!
//! Fairness: none beyond the database's own. A wait for the row ends after [`WAIT`] in
//! [`ErrorKind::Busy`] (MySQL: after the session's `innodb_lock_wait_timeout`; SQLite: after its busy
//! timeout). After an error, roll back. Cancel safety: a dropped call leaves the transaction in a
//! state nobody knows; roll it back.
//!
//! Shared accesses to one resource wait for each other's commit, since each writes its row. When not
//! to use it: where every writer only does `UPDATE … WHERE balance >= 10`, a conditional update is
//! right without lock and fence. It guards what is in the *same* database, and only against those who
//! enter.

mod check;
mod failed;
mod names;
mod protection;
mod texts;
mod update;

use std::time::Duration;

use leasehold_core::{Access, Mark, Marks};
use leasehold_sql::{Class, Connection, Transaction, Value};

use self::failed::{failed, name};
use self::texts::texts;
use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

pub use self::protection::protection;
pub use self::update::Update;
pub use leasehold_sql::Engine;

/// How long a call waits for a row that another transaction holds, on PostgreSQL and MariaDB.
pub const WAIT: Duration = Duration::from_secs(5);

/// Makes the table of marks, `leasehold_fence`, where it is not there yet.
///
/// On a connection and not in a transaction: on MySQL it would end one. The statements are in
/// `src/sql/*/create_table.sql`, for those who keep their schema elsewhere.
///
/// # Errors
///
/// [`ErrorKind::Permission`] or what else the database says.
pub async fn create_table<C: Connection + ?Sized>(connection: &mut C) -> Result<()> {
    let doing = "create the table leasehold_fence";
    let texts = texts(connection.engine(), doing)?;
    let made = match connection.execute(texts.create_table, &[]).await {
        // PostgreSQL, where someone else made it at the same moment.
        Err(error) if error.class() == Class::Duplicate => {
            connection.execute(texts.create_table, &[]).await
        }
        made => made,
    };
    made.map(drop).map_err(|error| failed(doing, error))
}

/// Lets an access begin: checks the mark, raises it, and holds the row to COMMIT.
///
/// The first statement of the caller's transaction, in one round trip. The same mark passes as
/// often as it likes.
///
/// # Errors
///
/// [`ErrorKind::Stale`] and [`ErrorKind::OtherEpoch`]: roll back and stop, the lease has ended.
/// [`ErrorKind::Restart`]: roll back and run the transaction again whole. [`ErrorKind::Busy`],
/// [`ErrorKind::Aborted`], [`ErrorKind::NoTable`], [`ErrorKind::Corrupt`],
/// [`ErrorKind::Permission`], [`ErrorKind::Io`].
pub async fn enter<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    access: Access,
    mark: Mark,
) -> Result<()> {
    let doing = format!("enter {of} in {}", name(tx.engine()));
    check::enter(tx, of, access, mark, &doing).await
}

/// Makes sure, before a write, that this mark has entered and is still the newest.
///
/// For code that writes far from where the transaction began: it holds the row too, and raises
/// nothing, so that a forgotten [`enter`] is found instead of papered over.
///
/// # Errors
///
/// [`ErrorKind::NotEntered`] where this mark was never raised; else as [`enter`].
pub async fn guard<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    access: Access,
    mark: Mark,
) -> Result<()> {
    let doing = format!("guard a write to {of} in {}", name(tx.engine()));
    let marks = check::locked(tx, of, &doing).await?.unwrap_or_default();
    let raised = marks.admit(access, mark).map_err(|stale| Error::stale(&doing, stale))?;
    if raised == marks {
        return Ok(());
    }
    let text = format!(
        "{doing}: token {mark} has not entered; call enter before the transaction's first read"
    );
    Err(Error::new(ErrorKind::NotEntered, text))
}

/// The marks of a resource, to show to people. Deciding on them is a race: use [`enter`].
///
/// # Errors
///
/// As [`enter`], but never for being stale.
pub async fn marks<T: Transaction + ?Sized>(tx: &mut T, of: &Resource) -> Result<Marks> {
    let doing = format!("read the marks of {of} in {}", name(tx.engine()));
    let statement = texts(tx.engine(), &doing)?.read;
    check::read(tx, of, statement, &doing).await.map(Option::unwrap_or_default)
}

/// Shows a mark to the trigger of a table that [`protection`] protects; `None` takes it back.
///
/// Call it after [`enter`], before writing to that table. On PostgreSQL it ends with the transaction. On MySQL
/// it is the session's: take it back before COMMIT, unless the pool resets sessions, as
/// `mysql_async`'s does.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] on SQLite, which has no such trigger; else what the database says.
pub async fn present<T: Transaction + ?Sized>(tx: &mut T, mark: Option<Mark>) -> Result<()> {
    let engine = tx.engine();
    let doing = format!("show a mark to the triggers of {}", name(engine));
    let Some(statement) = texts(engine, &doing)?.present else {
        return Err(Error::new(ErrorKind::Unsupported, format!("{doing}: it has none of ours")));
    };
    // PostgreSQL has no NULL here: an empty one is as good as none.
    let none = if engine == Engine::Postgres { Value::from("") } else { Value::Null };
    let shown = mark.map_or(none, |mark| mark.to_string().into());
    let done = if engine == Engine::Postgres {
        tx.rows(statement, &[shown]).await.map(drop)
    } else {
        tx.execute(statement, &[shown]).await.map(drop)
    };
    done.map_err(|error| failed(&doing, error))
}
