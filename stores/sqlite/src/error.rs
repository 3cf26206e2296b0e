//! From what SQLite and the system say to the one error of leasehold.

use std::io;

use leasehold_core::{Error, ErrorKind, ResourceName};
use rusqlite::ffi;

/// Why a step in a transaction did not finish.
#[derive(Debug)]
pub(crate) enum Fail {
    /// Another connection has the write lock: try again soon.
    Busy,
    /// The reserved tokens are used up: reserve from this one on and start over.
    Reserve(u64),
    /// It cannot be done.
    Error(Error),
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        Fail::Error(error)
    }
}

impl From<rusqlite::Error> for Fail {
    fn from(error: rusqlite::Error) -> Fail {
        if is_busy(&error) { Fail::Busy } else { Fail::Error(from_sqlite(error)) }
    }
}

pub(crate) type Step<T> = Result<T, Fail>;

/// What is being done, in the words that stand first in an error. A store's step does not know for
/// which verb it runs; the verb puts its own words in.
pub(crate) const DOING: &str = "use the store";

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
    )
}

/// What an error of SQLite means for a user.
pub(crate) fn from_sqlite(error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode as Code;
    let extended = match &error {
        rusqlite::Error::SqliteFailure(failure, _) => failure.extended_code,
        _ => 0,
    };
    let made = |kind, detail: &str| Error::new(kind, DOING, detail);
    let told = match error.sqlite_error_code() {
        _ if extended == ffi::SQLITE_READONLY_DBMOVED => replaced("its file was moved away"),
        Some(Code::DatabaseCorrupt | Code::NotADatabase) => {
            made(ErrorKind::Corrupt, "its file is damaged or is not a database")
                .advise("stop all users of it, move the file away and start with an empty one")
        }
        Some(Code::ReadOnly) => made(ErrorKind::Unavailable, "its file is read-only")
            .advise("make the file and its directory writable, or name another path"),
        Some(Code::DiskFull) => made(ErrorKind::Unavailable, "the disk or the database is full")
            .advise("free some space"),
        Some(Code::PermissionDenied) => made(ErrorKind::Permission, "its file may not be used"),
        Some(Code::CannotOpen) => made(ErrorKind::Config, "its file cannot be opened"),
        Some(Code::SystemIoFailure) => {
            made(ErrorKind::Unavailable, "reading or writing its files failed")
                .maybe_applied()
                .advise("look at the disk, and at limits on the size of files (ulimit -f)")
        }
        Some(Code::OutOfMemory) => made(ErrorKind::Unavailable, "out of memory"),
        Some(Code::Unknown | Code::ConstraintViolation | Code::TypeMismatch) => {
            made(ErrorKind::Corrupt, "its tables are not as leasehold made them")
        }
        Some(_) => made(ErrorKind::Unavailable, "sqlite refused the step"),
        None => made(ErrorKind::Corrupt, "a row does not have the shape that was written"),
    };
    told.caused_by(error)
}

pub(crate) fn from_io(kind: ErrorKind, detail: impl Into<String>, error: io::Error) -> Error {
    Error::new(kind, DOING, detail).caused_by(error)
}

pub(crate) fn replaced(detail: &str) -> Error {
    Error::new(ErrorKind::Replaced, DOING, detail)
        .advise("what it held is lost; open the store again")
}

/// A name that cannot be one.
pub(crate) fn bad_name() -> Error {
    Error::new(ErrorKind::Corrupt, DOING, "a name in it is not one that leasehold takes")
}

/// A row that cannot be right.
pub(crate) fn corrupt(resource: &ResourceName, what: &str) -> Fail {
    let detail = format!("its row cannot be trusted: {what}");
    let error = Error::new(ErrorKind::Corrupt, DOING, detail).on(resource);
    Fail::Error(error.advise("delete the row when nobody uses the resource"))
}
