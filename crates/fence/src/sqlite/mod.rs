//! The fence in the caller's own SQLite transaction.
//!
//! What it means: within one transaction, [`enter`] takes the database's write lock, refuses a
//! mark that a conflicting newer one has passed, and raises it otherwise. The write lock is held
//! to COMMIT, so nothing can come between the check and the caller's writes, and what the caller
//! reads after it cannot be changed by anyone before its own commit. Check, mark and write commit
//! or vanish together: a rollback leaves the marks as they were.
//!
//! Call it **first in each transaction**, before the first read. An old holder's write could
//! otherwise land between the read and the write that was computed from it. Where the transaction
//! has read already and someone has committed since, SQLite refuses the lock and [`enter`] answers
//! [`ErrorKind::Restart`]; `BEGIN IMMEDIATE` makes that impossible and lets SQLite's busy timeout
//! do the waiting.
//!
//! ```
//! use leasehold_fence::{Access, ErrorKind, Mark, Resource, Token, sqlite};
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut db = Connection::open_in_memory()?;
//! sqlite::create_table(&db)?;
//! # db.execute_batch("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (100)")?;
//! let account = Resource::new("account/7")?;
//! let mine = Mark::from(Token::new(42).unwrap()); // what the lock gave with the lease
//!
//! let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! sqlite::enter(&tx, &account, Access::Exclusive, mine)?; // before the first read
//! let balance: i64 = tx.query_row("SELECT balance FROM account", [], |row| row.get(0))?;
//! tx.execute("UPDATE account SET balance = ?1", [balance - 10])?;
//! tx.commit()?;
//!
//! // The holder before this one wakes up late: refused, and told of whom.
//! let late = Mark::from(Token::new(41).unwrap());
//! let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! let refused = sqlite::enter(&tx, &account, Access::Exclusive, late).unwrap_err();
//! assert_eq!(refused.stale_mark().map(|stale| stale.newest), Some(mine));
//! # Ok(())
//! # }
//! ```
//!
//! Fairness: none beyond SQLite's own. A wait is SQLite's busy timeout, and ends in
//! [`ErrorKind::Busy`] with the transaction still open and nothing changed.
//!
//! When not to use it: where every writer only does `UPDATE … WHERE balance >= 10`, a conditional
//! update is right without a lock or a fence. It guards what is in the *same database file*, main
//! schema: a commit over attached databases is not atomic in WAL mode. Writers that do not call it
//! are not refused. A savepoint rolled back takes a mark raised inside it along.

use leasehold_core::{Access, Epoch, Mark, Marks, Token};
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, named_params};

use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// Makes the table of marks, `leasehold_fence`, where it is not there yet.
///
/// The statement is in `create_table.sql`, for those who keep their schema elsewhere.
///
/// # Errors
///
/// [`ErrorKind::Busy`] or [`ErrorKind::Io`], with SQLite's own error as the source.
pub fn create_table(conn: &Connection) -> Result<()> {
    let doing = "create the table leasehold_fence";
    conn.execute_batch(include_str!("create_table.sql")).map_err(|e| failed(doing, e))
}

/// Lets an access begin: takes the write lock, checks the mark, and raises it.
///
/// The first statement of the caller's transaction. Returns the marks as they are now.
/// The same mark passes as often as it likes.
///
/// # Errors
///
/// [`ErrorKind::Stale`]: roll back and stop, the lease has ended. [`ErrorKind::Restart`]: the
/// transaction read before it entered; roll back and run it again. [`ErrorKind::Busy`]: another
/// connection is writing. [`ErrorKind::NotInTransaction`], [`ErrorKind::Corrupt`],
/// [`ErrorKind::Io`]. After each of them the fence has changed nothing that a rollback would not
/// undo.
pub fn enter(conn: &Connection, of: &Resource, access: Access, mark: Mark) -> Result<Marks> {
    let doing = format!("enter {of} in SQLite");
    lock(conn, of, &doing)?;
    let marks = read(conn, of, &doing)?.unwrap_or_default();
    let raised = marks.admit(access, mark).map_err(|stale| Error::stale(&doing, stale))?;
    if raised != marks {
        write(conn, of, raised, &doing)?;
    }
    Ok(raised)
}

/// Makes sure, before a write, that this mark has entered and is still the newest.
///
/// For code that writes far from where the transaction began: it takes the write lock too, and
/// raises nothing, so a forgotten [`enter`] is found instead of papered over.
///
/// # Errors
///
/// [`ErrorKind::NotEntered`] where this mark was never raised; else as [`enter`].
pub fn guard(conn: &Connection, of: &Resource, access: Access, mark: Mark) -> Result<()> {
    let doing = format!("guard a write to {of} in SQLite");
    lock(conn, of, &doing)?;
    let marks = read(conn, of, &doing)?.unwrap_or_default();
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
/// [`ErrorKind::Corrupt`], [`ErrorKind::Busy`] or [`ErrorKind::Io`].
pub fn marks(conn: &Connection, of: &Resource) -> Result<Marks> {
    let doing = format!("read the marks of {of} in SQLite");
    Ok(read(conn, of, &doing)?.unwrap_or_default())
}

/// Takes the write lock by a statement that must, whatever it finds.
fn lock(conn: &Connection, of: &Resource, doing: &str) -> Result<()> {
    if conn.is_autocommit() {
        let text = format!(
            "{doing}: the connection is in no transaction, and a check outside the one that \
             writes proves nothing; begin one with BEGIN IMMEDIATE"
        );
        return Err(Error::new(ErrorKind::NotInTransaction, text));
    }
    let params = named_params! { ":resource": of.name().as_str(), ":slot": slot_column(of) };
    let mut statement =
        conn.prepare_cached(include_str!("lock.sql")).map_err(|e| failed(doing, e))?;
    statement.execute(params).map(drop).map_err(|e| failed(doing, e))
}

fn read(conn: &Connection, of: &Resource, doing: &str) -> Result<Option<Marks>> {
    let params = named_params! { ":resource": of.name().as_str(), ":slot": slot_column(of) };
    let mut statement =
        conn.prepare_cached(include_str!("read.sql")).map_err(|e| failed(doing, e))?;
    let row = statement
        .query_row(params, |row| Ok((mark_of(row, 0)?, mark_of(row, 2)?)))
        .optional()
        .map_err(|e| failed(doing, e))?;
    match row {
        None => Ok(None),
        Some((Ok(exclusive), Ok(shared))) => Ok(Some(Marks { exclusive, shared })),
        Some(_) => {
            let text = format!(
                "{doing}: its row in leasehold_fence is corrupt and is not trusted; find out \
                 who wrote it, then set it to the newest token given out"
            );
            Err(Error::new(ErrorKind::Corrupt, text))
        }
    }
}

/// The columns hold something that is no mark.
struct NoMark;

/// One mark of a row, checked: the table's own checks may have been switched off.
fn mark_of(row: &Row<'_>, at: usize) -> rusqlite::Result<Result<Option<Mark>, NoMark>> {
    let pair = (row.get::<_, Value>(at)?, row.get::<_, Value>(at + 1)?);
    let (epoch, token) = match pair {
        (Value::Null, Value::Null) => return Ok(Ok(None)),
        (Value::Integer(epoch), Value::Integer(token)) => (epoch, token),
        _ => return Ok(Err(NoMark)),
    };
    let token = u64::try_from(token).ok().and_then(Token::new);
    let (Ok(epoch), Some(token)) = (u32::try_from(epoch), token) else {
        return Ok(Err(NoMark));
    };
    Ok(Ok(Some(Mark { epoch: Epoch(epoch), token })))
}

fn write(conn: &Connection, of: &Resource, marks: Marks, doing: &str) -> Result<()> {
    let epoch = |mark: Option<Mark>| mark.map(|mark| i64::from(mark.epoch.0));
    let token = |mark: Option<Mark>| mark.map(|mark| mark.token.get().cast_signed());
    let params = named_params! {
        ":resource": of.name().as_str(),
        ":slot": slot_column(of),
        ":exclusive_epoch": epoch(marks.exclusive),
        ":exclusive_token": token(marks.exclusive),
        ":shared_epoch": epoch(marks.shared),
        ":shared_token": token(marks.shared),
    };
    let mut statement =
        conn.prepare_cached(include_str!("raise.sql")).map_err(|e| failed(doing, e))?;
    match statement.execute(params).map_err(|e| failed(doing, e))? {
        1 => Ok(()),
        n => {
            let text = format!(
                "{doing}: raising its marks changed {n} rows where it must change one; look for \
                 a trigger on leasehold_fence"
            );
            Err(Error::new(ErrorKind::Corrupt, text))
        }
    }
}

fn slot_column(of: &Resource) -> i64 {
    of.slot_number().map_or(-1, i64::from)
}

/// SQLITE_BUSY_SNAPSHOT: the transaction reads a snapshot that is no longer the newest.
const BUSY_SNAPSHOT: i32 = 517;

fn failed(doing: &str, error: rusqlite::Error) -> Error {
    let (kind, advice) = match error.sqlite_error() {
        Some(e) if e.extended_code == BUSY_SNAPSHOT => (
            ErrorKind::Restart,
            ": the transaction read before it entered, and what it read has changed; roll back \
             and run it again whole, with BEGIN IMMEDIATE",
        ),
        Some(e) if matches!(e.code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Busy, ": another connection is writing; try again")
        }
        Some(e) if matches!(e.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, ": the database is corrupt")
        }
        _ => (ErrorKind::Io, ""),
    };
    Error::new(kind, format!("{doing}{advice}")).because(error)
}
