//! From what PostgreSQL says to the one error of leasehold.

use std::error::Error as _;

use leasehold_core::{Error, ErrorKind, shown};
use tokio_postgres::error::SqlState;

/// What is being done, in the words that stand first in an error; a verb puts its own in.
pub(crate) const DOING: &str = "use the store";

/// The longest message of the server that is passed on.
const MESSAGE_MAX: usize = 300;

/// What became of a message that was answered with an error, or not at all.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The connection is of no use any more.
    Connection(Error),
    /// The server refused, and goes on.
    Statement(Error),
}

/// What an error of an established connection means.
pub(crate) fn failed(error: tokio_postgres::Error) -> Failed {
    let Some(db) = error.as_db_error() else {
        let detail = format!("the connection broke: {}", root(&error));
        let made = Error::new(ErrorKind::Unreachable, DOING, detail);
        return Failed::Connection(made.maybe_applied().caused_by(error));
    };
    let code = db.code().clone();
    let class = code.code().get(..2).unwrap_or_default().to_owned();
    let made = told(&code, db.message());
    match class.as_str() {
        // Ended by an administrator or a crash; what was under way may have been committed.
        "08" | "57" if code != SqlState::QUERY_CANCELED => {
            Failed::Connection(made.maybe_applied().caused_by(error))
        }
        // Another server may be the one to write to.
        "25" => Failed::Connection(made.caused_by(error)),
        _ => Failed::Statement(made.caused_by(error)),
    }
}

/// What an error while connecting means.
pub(crate) fn not_connected(error: tokio_postgres::Error) -> Error {
    if let Some(db) = error.as_db_error() {
        return told(db.code(), db.message()).caused_by(error);
    }
    let text = error.to_string();
    let detail = format!("{text}: {}", root(&error));
    if text.contains("TLS") {
        return Error::new(ErrorKind::Config, DOING, detail)
            .advise("see that the server speaks TLS, and that `ca` and `server_name` fit it")
            .caused_by(error);
    }
    let kind = if text.contains("authentication") || text.contains("configuration") {
        ErrorKind::Permission
    } else {
        ErrorKind::Unreachable
    };
    Error::new(kind, DOING, detail).caused_by(error)
}

fn told(code: &SqlState, message: &str) -> Error {
    let said = shown(message, MESSAGE_MAX);
    let made = |kind, what: &str| {
        let code = code.code();
        Error::new(kind, DOING, format!("{what}: {said} (SQLSTATE {code})"))
    };
    match code.code() {
        "LH001" => Error::new(ErrorKind::Unavailable, DOING, "its tokens are used up"),
        "55P03" => locked(),
        "25006" => made(ErrorKind::Unavailable, "the server is read-only")
            .advise("name the primary, or all servers, in the store's URL"),
        "3D000" => made(ErrorKind::Config, "there is no such database"),
        "28000" if message.contains("no encryption") => {
            made(ErrorKind::Permission, "the server does not let this role in")
                .advise("the server may want TLS: add `?sslmode=require` to the store's URL")
        }
        code if code.starts_with("28") => {
            made(ErrorKind::Permission, "the server does not let this role in")
                .advise("check user and password in the store's URL, and the server's pg_hba.conf")
        }
        "42501" => made(ErrorKind::Permission, "this role lacks a right")
            .advise("run the SQL that `leasehold schema postgres` prints, with its grants"),
        "42P01" | "42883" | "3F000" => made(ErrorKind::Replaced, "its tables are gone")
            .advise("what it held is lost; open the store again"),
        "22021" | "22P05" => {
            made(ErrorKind::Unsupported, "the database's encoding cannot hold this name")
        }
        "40001" | "40P01" => made(ErrorKind::Unavailable, "the server asks to try again"),
        "57014" => made(ErrorKind::Unavailable, "the server cut it short"),
        "57P01" | "57P02" | "57P05" => made(ErrorKind::Unreachable, "the server let go of it"),
        "57P03" => made(ErrorKind::Unavailable, "the server is not ready"),
        code => match &code[..2] {
            "08" => made(ErrorKind::Unreachable, "the connection broke"),
            "53" => made(ErrorKind::Unavailable, "the server has no room"),
            "22" | "23" | "42" => {
                made(ErrorKind::Corrupt, "its tables are not as leasehold made them")
                    .advise("compare them with what `leasehold schema postgres` prints")
            }
            _ => made(ErrorKind::Unavailable, "the server refused"),
        },
    }
}

/// Somebody else's transaction has the row of a name locked.
pub(crate) fn locked() -> Error {
    let detail = "its row is locked by another transaction";
    Error::new(ErrorKind::Unavailable, DOING, detail)
        .advise("look into pg_stat_activity for who locks rows of leasehold_resource")
}

/// The innermost cause.
fn root(error: &tokio_postgres::Error) -> String {
    let mut cause: Option<&dyn std::error::Error> = error.source();
    let mut text = error.to_string();
    while let Some(inner) = cause {
        text = inner.to_string();
        cause = inner.source();
    }
    shown(&text, MESSAGE_MAX).into_owned()
}

/// An answer that cannot be one.
pub(crate) fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, DOING, format!("the server's answer cannot be read: {what}"))
        .maybe_applied()
}

impl Failed {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Failed::Connection(error) | Failed::Statement(error) => error,
        }
    }
}
