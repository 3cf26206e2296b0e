//! What can be wrong with a lock, each by a name of its own.

use std::time::Duration;

use leasehold_core::BadName;
use leasehold_sql::Class;

/// The result of a lock.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lock was not taken.
///
/// None of them is a lock that is held. Whether the caller's transaction goes on is what
/// [`Error::ends_transaction`] tells.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of a lock is empty, longer than 512 bytes, or holds a control character.
    #[error("the lock has no fit name: {0}")]
    Name(#[from] BadName),
    /// No name was given, or too many.
    #[error("{count} locks were asked for at once; want 1 to {limit}")]
    Count {
        /// How many names were given.
        count: usize,
        /// How many are taken at once.
        limit: usize,
    },
    /// A time that is out of its bounds.
    #[error("{what} must be between {least:?} and {most:?}")]
    OutOfBounds {
        /// What was set.
        what: &'static str,
        /// The least that is taken.
        least: Duration,
        /// The most that is taken.
        most: Duration,
    },
    /// There is no transaction in which the lock could live: it would be free again at once.
    #[error(
        "there is no transaction, and outside of one the lock would be free again at once; begin \
         one first, and on MySQL keep statements that commit by themselves out of it"
    )]
    OutsideTransaction,
    /// The transaction has failed before.
    #[error("the transaction has failed before; roll it back and run it again whole")]
    Aborted(#[source] leasehold_sql::Error),
    /// Another has it, and it was not to be waited for.
    #[error("the lock {name:?} is held by another")]
    Busy {
        /// The lock, or the first of several.
        name: String,
        /// Whether the server has rolled the transaction back: a MySQL server that runs with
        /// `innodb_rollback_on_timeout`.
        rolled_back: bool,
    },
    /// Another has it, and the wait for it is over.
    #[error("the lock {name:?} is still held by another after {after:?}")]
    WaitOver {
        /// The lock, or the first of several.
        name: String,
        /// How long it was to be waited for.
        after: Duration,
        /// As in [`Error::Busy`].
        rolled_back: bool,
    },
    /// Two transactions waited for each other, and the database ended this one's wait.
    #[error(
        "two transactions waited for each other, and this one was chosen to give way; roll it back \
         and run it again whole, and lock several names in one call"
    )]
    Deadlock(#[source] leasehold_sql::Error),
    /// The transaction has read what has changed since.
    #[error("what the transaction has read has changed since; roll it back and run it again whole")]
    Restart(#[source] leasehold_sql::Error),
    /// The transaction reads from a snapshot that is older than the lock.
    #[error(
        "the transaction is {level}: it would read, under the lock, what was there before the last \
         holder wrote; begin it as READ COMMITTED, or, where all are SERIALIZABLE, leave the lock \
         out and run again after 40001"
    )]
    Isolation {
        /// The level, as PostgreSQL names it.
        level: String,
    },
    /// There is no such table.
    #[error("there is no table {table}; `Rows::create` or the text of `Rows::schema` makes it")]
    NoTable {
        /// Its name.
        table: String,
        /// What the database said.
        source: leasehold_sql::Error,
    },
    /// The role may not do this.
    #[error(
        "the role may not use the locks; a row lock needs SELECT, INSERT and UPDATE on its table"
    )]
    Permission(#[source] leasehold_sql::Error),
    /// The server or the transaction takes no writes, and a lock there would be its own alone.
    #[error("no writes are taken here, so a lock would exclude nobody; connect to the primary")]
    ReadOnly(#[source] Option<leasehold_sql::Error>),
    /// The connection is gone, and with it every lock and the whole transaction.
    #[error("the connection is gone, and its locks with it; run the transaction again whole")]
    ConnectionLost(#[source] leasehold_sql::Error),
    /// The engine has no such locks.
    #[error("{what}; {instead}")]
    Unsupported {
        /// What it does not have.
        what: &'static str,
        /// What to use in its place.
        instead: &'static str,
    },
    /// Statements of one connection go to several of the server's: a lock would be taken on one
    /// and looked for on another.
    #[error(
        "a pooler stands before the server: it greets as process {greeted} and process {answered} \
         answers; connect to the server itself, or take the lock in a transaction \
         (`lock::advisory`, `lock::row`), or use a lease of leasehold, which a pooler does not mind"
    )]
    Pooled {
        /// The process or connection by which the connection was greeted.
        greeted: u32,
        /// The one that answered.
        answered: u32,
    },
    /// Several servers take writes, and each keeps such locks for itself.
    #[error(
        "the server is one of several that take writes, and keeps its session locks to itself; \
         lock a row in a transaction and run it again if its commit is refused, or use a lease of \
         leasehold on another store"
    )]
    SeveralWriters,
    /// The server said that the lock was taken, and does not know it in the next statement.
    #[error(
        "the server does not keep the lock: it was taken, and the next statement does not find it; \
         lock a row in a transaction, or use a lease of leasehold"
    )]
    NotKept,
    /// The server was not reached, or did not answer in time.
    #[error("the server was not reached: {why}")]
    Unreachable {
        /// Why, without secrets.
        why: String,
        /// What the driver said.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Anything else that the database or its driver said.
    #[error(transparent)]
    Sql(leasehold_sql::Error),
}

impl Error {
    /// Whether the caller's transaction is over, and whatever it did is undone: roll back, and run
    /// it again whole. Elsewhere it goes on as if nothing had been asked.
    ///
    /// One exception: what a refused call of several names has locked before it met the busy one
    /// stays locked on MySQL, to the end of the transaction. Nothing of it stays on PostgreSQL.
    pub fn ends_transaction(&self) -> bool {
        match self {
            Error::Aborted(_) | Error::Restart(_) | Error::ConnectionLost(_) => true,
            Error::Deadlock(source) => source.code().is_none_or(|code| code != "40P01"),
            Error::Busy { rolled_back, .. } | Error::WaitOver { rolled_back, .. } => *rolled_back,
            _ => false,
        }
    }

    /// What the database said, sorted by what a program may do about it; `None` where it is not of
    /// the database.
    pub fn class(&self) -> Option<Class> {
        match self {
            Error::Busy { .. } | Error::WaitOver { .. } => Some(Class::Busy),
            _ => self.database().map(leasehold_sql::Error::class),
        }
    }

    /// What the database or its driver said.
    pub fn database(&self) -> Option<&leasehold_sql::Error> {
        match self {
            Error::Aborted(source)
            | Error::Deadlock(source)
            | Error::Restart(source)
            | Error::Permission(source)
            | Error::ConnectionLost(source)
            | Error::NoTable { source, .. }
            | Error::Sql(source) => Some(source),
            Error::ReadOnly(source) => source.as_ref(),
            _ => None,
        }
    }
}

/// An error of the database by its own name; [`Class::Busy`] is the caller's to name.
impl From<leasehold_sql::Error> for Error {
    fn from(source: leasehold_sql::Error) -> Error {
        match source.class() {
            Class::Aborted => Error::Aborted(source),
            Class::Deadlock => Error::Deadlock(source),
            Class::Restart => Error::Restart(source),
            Class::Permission => Error::Permission(source),
            Class::ReadOnly => Error::ReadOnly(Some(source)),
            Class::Connection => Error::ConnectionLost(source),
            Class::NoTransaction => Error::OutsideTransaction,
            _ => Error::Sql(source),
        }
    }
}
