//! What a database refused, sorted by what a program may do about it.

use std::fmt;

/// The result of one statement.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a database or its driver said about one statement.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    class: Class,
    code: Option<String>,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// What a program may do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Class {
    /// The transaction has read what has changed since: roll back and run it again whole.
    /// PostgreSQL 40001; SQLite BUSY_SNAPSHOT; MySQL 3572 does not belong here.
    Restart,
    /// The database ended a deadlock at this transaction's cost: as [`Class::Restart`].
    /// PostgreSQL 40P01, MySQL 1213.
    Deadlock,
    /// Another transaction holds what this one waited for, and the wait is over.
    /// PostgreSQL 55P03, MySQL 1205, 3058 and 3572, SQLite BUSY and LOCKED.
    Busy,
    /// The transaction has failed before and takes no statement but ROLLBACK. PostgreSQL 25P02.
    Aborted,
    /// A unique key is there already.
    Duplicate,
    /// A CHECK refuses the value, or it is out of its column's range.
    Refused,
    /// There is no such table.
    NoTable,
    /// The table has no such column.
    NoColumn,
    /// The role may not do this.
    Permission,
    /// The server or the transaction takes no writes.
    ReadOnly,
    /// The connection is gone. What was sent may have happened.
    Connection,
    /// Anything else.
    Other,
}

impl Error {
    /// An error of this class; `code` is the engine's own (a SQLSTATE or a number).
    pub fn new(
        class: Class,
        code: Option<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error { class, code, source: source.into() }
    }

    /// What a program may do about it.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The engine's own code: a SQLSTATE, or the number of an error.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.code {
            Some(code) => write!(f, "{} ({code})", self.class),
            None => write!(f, "{}", self.class),
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Restart => "what the transaction has read has changed since",
            Class::Deadlock => "the database ended a deadlock at this transaction's cost",
            Class::Busy => "another transaction holds it",
            Class::Aborted => "the transaction is aborted already; roll it back",
            Class::Duplicate => "the unique key is there already",
            Class::Refused => "a check of the table refuses the value",
            Class::NoTable => "there is no such table",
            Class::NoColumn => "the table has no such column",
            Class::Permission => "the role may not do this",
            Class::ReadOnly => "no writes are taken here",
            Class::Connection => "the connection is gone",
            Class::Other => "the database refused the statement",
        })
    }
}
