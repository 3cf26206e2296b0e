//! Row locks: `SELECT … FOR UPDATE` on a small table, in the caller's transaction.
//!
//! A lock is taken with a transaction and ends with it, by commit, rollback or the end of the
//! connection, whichever comes first: lock, fence and write become visible together, or none does.
//! There is nothing to release, and nothing to release too early.
//!
//! ```no_run
//! use std::time::Duration;
//! use leasehold_data::lock::{Wait, row::Rows};
//! # use leasehold_sql::Transaction;
//! # async fn ship(tx: &mut (dyn Transaction + Send)) -> Result<(), leasehold_data::lock::Error> {
//! let rows = Rows::default();
//! rows.lock(tx, "order-4711", Wait::AtMost(Duration::from_secs(5))).await?;
//! // Read, decide and write in this transaction; its commit frees the lock.
//! # Ok(())
//! # }
//! ```
//!
//! **Lock first.** Take the lock before the transaction reads what it protects: what was read
//! before may be what the last holder has since changed. On PostgreSQL, a transaction of
//! REPEATABLE READ or SERIALIZABLE reads from before its lock whatever it does, and is refused. On
//! MySQL a plain read before the lock fixes the snapshot of all later ones at REPEATABLE READ; the
//! lock itself does not.
//!
//! **Fairness.** The database's: PostgreSQL and InnoDB serve waiters of a row in the order of their
//! coming, mostly; one that comes as the lock is being freed may be faster.
//!
//! **Several names** are locked in the order of their bytes, so that calls with several names do
//! not deadlock with each other, whatever the order they were given in. Two calls in one transaction
//! may.
//!
//! **Re-entry.** A transaction may lock a name that it has; nothing is counted.
//!
//! **Savepoints.** What was locked before a savepoint stays when the transaction goes back to it. What
//! was locked behind it is free then on PostgreSQL, and may be on MySQL: count it as free.
//!
//! **Cancel safety.** After a dropped call it is unknown whether the lock is held, and the bound of
//! its wait may still be set: roll back, as the drivers do when their transaction is dropped.
//!
//! **Not for** work outside the database, nor for minutes: an open transaction holds back vacuum
//! and purge, and a pooler's connection. Take a lease of leasehold there.
//!
//! | | PostgreSQL | MySQL, MariaDB | SQLite |
//! |---|---|---|---|
//! | what is locked | the name's row | the name's row | the whole file: there is one writer |
//! | waits are bounded by | `lock_timeout` and `statement_timeout`, put back after it | MariaDB: `SET STATEMENT … FOR`; MySQL: `innodb_lock_wait_timeout` in whole seconds and for each name, put back after it | `busy_timeout`, put back after it; a busy handler of your own is not |
//! | after a refusal | the transaction goes on (a savepoint) | it goes on, unless the server runs with `innodb_rollback_on_timeout` and is no MariaDB | it goes on |
//! | after a deadlock | it goes on, without this lock | it is rolled back whole | there is none |
//! | round trips | 3, and 4 more where it waits | MariaDB 2, MySQL 6 | — |
//!
//! A row is made when its name is first locked. On PostgreSQL that never deadlocks; one who will not
//! wait may wait a tenth of a second for another who is making it. On MySQL and MariaDB, when the
//! transaction that first locks a name is rolled back and several wait for it, all but one of them may
//! be told [`Error::Deadlock`]. On MySQL, who will not wait for a name without a row may be told busy,
//! or a deadlock, for others who make rows near it. [`Rows::make`], committed beforehand, leaves all of
//! that out.

mod mysql;
mod postgres;
mod sqlite;

use leasehold_core::ResourceName;
use leasehold_sql::{Class, Engine, Transaction};

use super::statement::{body, on};
use super::{Error, Result, Wait};
use crate::Table;

/// The most names that one call takes.
pub const NAMES_MAX: usize = 64;

/// The table whose rows are locked: `leasehold_lock` by default.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    table: Option<Table>,
}

impl Rows {
    /// Another table, of the same columns.
    pub fn on(table: Table) -> Rows {
        Rows { table: Some(table) }
    }

    /// The statement that makes the table, if it is not there.
    ///
    /// ```
    /// use leasehold_data::lock::row::Rows;
    /// use leasehold_sql::Engine;
    ///
    /// let statement = Rows::default().schema(Engine::Postgres);
    /// assert!(statement.starts_with("CREATE TABLE IF NOT EXISTS leasehold_lock ("));
    /// ```
    pub fn schema(&self, engine: Engine) -> String {
        let file = match engine {
            Engine::Postgres => include_str!("../sql/postgres/row_schema.sql"),
            Engine::Sqlite => include_str!("../sql/sqlite/row_schema.sql"),
            _ => include_str!("../sql/mysql/row_schema.sql"),
        };
        on(file, self.table.as_ref(), engine).into_owned()
    }

    /// Makes the table, if it is not there.
    ///
    /// On MySQL the making of a table commits: do it in a transaction of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Permission`] if the role may not, and what else the database says.
    pub async fn create<T>(&self, tx: &mut T) -> Result<()>
    where
        T: Transaction + Send + ?Sized,
    {
        let statement = self.schema(tx.engine());
        if tx.engine() == Engine::Postgres {
            return postgres::create(tx, &statement).await;
        }
        tx.execute(&statement, &[]).await?;
        Ok(())
    }

    /// Makes the rows of these names, where they are missing, and may lock them.
    ///
    /// Not needed; worth it for names that are known and first locked by many at once, in a
    /// transaction of its own.
    ///
    /// # Errors
    ///
    /// As [`Rows::lock_all`].
    pub async fn make<T>(&self, tx: &mut T, names: &[&str]) -> Result<()>
    where
        T: Transaction + Send + ?Sized,
    {
        let names = sorted(names)?;
        match tx.engine() {
            Engine::Postgres => postgres::make(tx, self, &names).await,
            Engine::Mysql => mysql::make(tx, self, &names).await,
            Engine::Sqlite => sqlite::make(tx, self, &names).await,
            _ => Err(unknown_engine()),
        }
    }

    /// Locks a name to the end of the transaction.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] or [`Error::WaitOver`] if another has it, [`Error::Name`] for a name that is
    /// none, and [`Error::OutsideTransaction`], [`Error::Aborted`], [`Error::Isolation`],
    /// [`Error::Deadlock`], [`Error::NoTable`], [`Error::Permission`], [`Error::ReadOnly`] or
    /// [`Error::ConnectionLost`] for what is wrong with the transaction it was to be held in.
    pub async fn lock<T>(&self, tx: &mut T, name: &str, wait: Wait) -> Result<()>
    where
        T: Transaction + Send + ?Sized,
    {
        self.lock_all(tx, &[name], wait).await
    }

    /// Locks all of these names, or none, in the order of their bytes.
    ///
    /// The bound is that of the whole wait, or a second more (on MySQL, that of the wait for each). What was locked before
    /// a refusal is free again, but on MySQL, where that waits for the end of the transaction.
    ///
    /// # Errors
    ///
    /// As [`Rows::lock`], and [`Error::Count`] for no name, or more than [`NAMES_MAX`].
    pub async fn lock_all<T>(&self, tx: &mut T, names: &[&str], wait: Wait) -> Result<()>
    where
        T: Transaction + Send + ?Sized,
    {
        let names = sorted(names)?;
        match tx.engine() {
            Engine::Postgres => postgres::lock(tx, self, &names, wait).await,
            Engine::Mysql => mysql::lock(tx, self, &names, wait).await,
            Engine::Sqlite => sqlite::lock(tx, self, &names, wait).await,
            _ => Err(unknown_engine()),
        }
    }

    /// Locks one of these names that is free, without a wait, and tells its place among them; or
    /// `None`, if all are held: SKIP LOCKED.
    ///
    /// They are tried in the order given; on PostgreSQL, names that nobody has ever locked come
    /// last.
    ///
    /// # Errors
    ///
    /// As [`Rows::lock_all`], but for a lock that another has.
    pub async fn first_free<T>(&self, tx: &mut T, names: &[&str]) -> Result<Option<usize>>
    where
        T: Transaction + Send + ?Sized,
    {
        let given = checked(names)?;
        let taken = match tx.engine() {
            Engine::Postgres => postgres::first_free(tx, self, &given).await?,
            Engine::Mysql => mysql::first_free(tx, self, &given).await?,
            Engine::Sqlite => sqlite::first_free(tx, self, &given).await?,
            _ => return Err(unknown_engine()),
        };
        Ok(taken.and_then(|taken| given.iter().position(|name| *name == taken)))
    }

    /// The statement of a file, on this table.
    fn text(&self, file: &'static str, engine: Engine) -> std::borrow::Cow<'static, str> {
        match &self.table {
            None => body(file).into(),
            table => on(file, table.as_ref(), engine),
        }
    }

    /// An error of the database, met on this table.
    fn failed(&self, error: leasehold_sql::Error) -> Error {
        match (error.class(), &self.table) {
            (Class::NoTable, Some(table)) => {
                Error::NoTable { table: table.to_string(), source: error }
            }
            (Class::NoTable, None) => {
                Error::NoTable { table: "leasehold_lock".to_owned(), source: error }
            }
            _ => error.into(),
        }
    }
}

fn unknown_engine() -> Error {
    Error::Unsupported {
        what: "row locks are not written for this database",
        instead: "use a lease of leasehold",
    }
}

fn checked(names: &[&str]) -> Result<Vec<ResourceName>> {
    if names.is_empty() || names.len() > NAMES_MAX {
        return Err(Error::Count { count: names.len(), limit: NAMES_MAX });
    }
    names.iter().map(|name| ResourceName::new(name).map_err(Error::Name)).collect()
}

/// In the order in which they are locked, each once.
fn sorted(names: &[&str]) -> Result<Vec<ResourceName>> {
    let mut names = checked(names)?;
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// What an error is told about: the first of the names.
fn first(names: &[ResourceName]) -> &str {
    names.first().map_or("", ResourceName::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_counted_and_sorted() {
        assert_eq!(sorted(&["b", "a", "b"]).unwrap(), checked(&["a", "b"]).unwrap());
        assert!(matches!(sorted(&[]), Err(Error::Count { count: 0, .. })));
        assert!(matches!(sorted(&["x"; 65]), Err(Error::Count { count: 65, .. })));
        for bad in ["", "a\nb", &"x".repeat(513)] {
            assert!(matches!(sorted(&[bad]), Err(Error::Name(_))), "{bad:?}");
        }
    }

    #[test]
    fn each_file_is_one_statement_on_one_table() {
        let table = Table::in_schema("own", "locks").unwrap();
        let rows = Rows::on(table);
        for engine in [Engine::Postgres, Engine::Mysql, Engine::Sqlite] {
            let text = rows.schema(engine);
            assert!(!text.contains("leasehold_lock") && text.contains("locks"), "{text}");
            assert!(!text.contains(';') && !text.contains("--"), "{text}");
        }
    }
}
