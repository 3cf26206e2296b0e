//! From what a database says to the one error of the fences.

use leasehold_sql::{Class, Engine};

use crate::error::{Error, ErrorKind};

pub(super) fn name(engine: Engine) -> &'static str {
    match engine {
        Engine::Postgres => "PostgreSQL",
        Engine::Mysql => "MySQL",
        Engine::Sqlite => "SQLite",
        _ => "the database",
    }
}

/// What an error of a statement of ours means to whoever called.
pub(super) fn failed(doing: &str, error: leasehold_sql::Error) -> Error {
    let (kind, advice) = match error.class() {
        Class::Restart | Class::Deadlock => (
            ErrorKind::Restart,
            "another transaction came between; roll back and run this one again whole",
        ),
        Class::Busy => (ErrorKind::Busy, "another transaction holds the row; try again"),
        Class::Aborted => (
            ErrorKind::Aborted,
            "the transaction has failed before; roll it back, and run it again",
        ),
        Class::NoTransaction => (
            ErrorKind::NotInTransaction,
            "there is no transaction, and a check outside the one that writes proves nothing; BEGIN \
             first",
        ),
        Class::NoTable => {
            (ErrorKind::NoTable, "there is no such table; create_table makes the one of the marks")
        }
        Class::NoColumn => (ErrorKind::NoColumn, "the table has no such column"),
        Class::Permission => (ErrorKind::Permission, "the role may not do this"),
        Class::ReadOnly => (ErrorKind::Unsupported, "no writes are taken here"),
        Class::Corrupt => (ErrorKind::Corrupt, "the database is damaged"),
        Class::Connection => (ErrorKind::Io, "the connection is gone, and the transaction with it"),
        _ => (ErrorKind::Io, "the database refused the statement"),
    };
    Error::new(kind, format!("{doing}: {advice}")).because(error)
}
