//! What can be wrong, each by a name of its own.

use leasehold_core::Token;
use leasehold_sql::Class;

/// The result of anything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was wrong: with what was asked, or with the transaction it was asked in.
///
/// That a key is busy, a row is stale or a stock is short is no error: those are answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An idempotency key without a byte.
    #[error("the idempotency key is empty; each operation needs a key of its own")]
    EmptyKey,
    /// An idempotency key of more than 255 bytes.
    #[error("the idempotency key has {length} bytes; at most 255 are taken")]
    KeyTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A key of nobody.
    #[error(
        "the scope of the idempotency key is empty; name the caller, or callers are answered with each other's work"
    )]
    EmptyScope,
    /// A scope of more than 255 bytes.
    #[error("the scope of the idempotency key has {length} bytes; at most 255 are taken")]
    ScopeTooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// A NUL character, which PostgreSQL keeps in no text.
    #[error("the {what} has a NUL character")]
    Nul {
        /// What has it.
        what: &'static str,
    },
    /// An answer that is larger than these keys keep.
    #[error(
        "the answer has {length} bytes; at most {limit} are kept; raise `answer_limit`, or keep a reference to it"
    )]
    AnswerTooLarge {
        /// The bytes of head and body.
        length: usize,
        /// How many are kept.
        limit: usize,
    },
    /// The state at a recovery point is larger than 64 KiB.
    #[error("the state at a recovery point has {length} bytes; at most 65536 are kept")]
    StateTooLarge {
        /// Its length in bytes.
        length: usize,
    },
    /// The name of a recovery point is empty or has more than 255 bytes.
    #[error("the name of a recovery point has {length} bytes; 1 to 255 are taken")]
    PointName {
        /// Its length in bytes.
        length: usize,
    },
    /// A term, a time to keep or a limit that is out of its bounds.
    #[error("{what} must be between {least} and {most}")]
    OutOfBounds {
        /// What was set.
        what: &'static str,
        /// The least that is taken.
        least: &'static str,
        /// The most that is taken.
        most: &'static str,
    },
    /// Another run of the key has taken over, because this one was silent for a whole term.
    #[error("another run of the idempotency key has taken over, with token {newer}; roll back")]
    TakenOver {
        /// The token of the newer run.
        newer: Token,
    },
    /// The run has finished before: most likely a commit of it whose reply was lost.
    #[error(
        "this run of the idempotency key has finished already; roll back, and claim again for its answer"
    )]
    Finished,
    /// The run's row is gone: cleaned after its time, or forgotten.
    #[error("this run of the idempotency key is not known any more; roll back")]
    Forgotten,
    /// The name of a table or column that cannot be one.
    #[error("{name:?} cannot be the name of a table or column: {why}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        why: &'static str,
    },
    /// A row is at the last version that there is.
    #[error("the row is at the last version that an integer of 64 bits can tell")]
    Versions,
    /// An amount that is none: below 1, or a sum that is too large.
    #[error("{amount} is no amount: from 1 to {}, also in sum", i64::MAX)]
    Amount {
        /// The amount.
        amount: i64,
    },
    /// Too many of something in one call, or none.
    #[error("{count} {what} in one call; 1 to {most} are taken")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there were.
        count: usize,
        /// How many are taken.
        most: usize,
    },
    /// The table has no unique key over just these columns.
    #[error(
        "the table {table} has no unique key over just {columns}; without one, two may be inserted"
    )]
    NoUniqueKey {
        /// The table's name.
        table: String,
        /// The columns.
        columns: String,
        /// What the database said, where it was the one to say so.
        source: Option<leasehold_sql::Error>,
    },
    /// The operating system has no random bits.
    #[error("the operating system gives no random bits")]
    NoRandomness(#[source] getrandom::Error),
    /// There is no such table.
    #[error("there is no table {table}; `create_table` or its printed text makes it")]
    NoTable {
        /// Its name.
        table: String,
        /// What the database said.
        source: leasehold_sql::Error,
    },
    /// The table lacks a column.
    #[error("the table {table} lacks a column that is needed: {columns}")]
    NoColumn {
        /// The table's name.
        table: String,
        /// Those that are needed.
        columns: String,
        /// What the database said.
        source: leasehold_sql::Error,
    },
    /// The transaction has failed before.
    #[error("the transaction has failed before; roll it back and run it again whole")]
    Aborted(#[source] leasehold_sql::Error),
    /// There is no transaction: what is asked would end with its own statement, and protect nothing.
    #[error("the connection is in no transaction; begin one first")]
    NoTransaction(#[source] leasehold_sql::Error),
    /// What was read cannot have been written here.
    #[error("the row of {table} is not one of leasehold's: {what}")]
    Corrupt {
        /// The table's name.
        table: String,
        /// What is wrong.
        what: &'static str,
    },
    /// Anything else that the database or its driver said.
    #[error(transparent)]
    Sql(#[from] leasehold_sql::Error),
}

impl Error {
    /// What the database said, sorted by what a program may do about it; `None` where it is not of the database.
    pub fn class(&self) -> Option<Class> {
        self.database().map(leasehold_sql::Error::class)
    }

    /// What the database or its driver said.
    pub fn database(&self) -> Option<&leasehold_sql::Error> {
        match self {
            Error::NoTable { source, .. } | Error::NoColumn { source, .. } => Some(source),
            Error::Aborted(source) | Error::NoTransaction(source) | Error::Sql(source) => {
                Some(source)
            }
            _ => None,
        }
    }

    /// An error of the database, met on this table of ours, which has these columns.
    pub(crate) fn on(table: &str, columns: &str, source: leasehold_sql::Error) -> Error {
        let table = table.to_owned();
        match source.class() {
            Class::NoTable => Error::NoTable { table, source },
            Class::NoColumn => Error::NoColumn { table, columns: columns.to_owned(), source },
            Class::Aborted => Error::Aborted(source),
            Class::NoTransaction => Error::NoTransaction(source),
            _ => Error::Sql(source),
        }
    }
}
