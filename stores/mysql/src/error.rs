//! From what the driver and the server say to the one error of leasehold.

use leasehold_core::{Error, ErrorKind, ResourceName};
use mysql_async::{DriverError, Error as My, IoError, ServerError};

/// What is being done, in the words that stand first in an error. A step does not know for which
/// verb it runs; the verb puts its own words in.
pub(crate) const DOING: &str = "use the store";

/// Why a step did not finish.
#[derive(Debug)]
pub(crate) enum Fail {
    /// The server chose this transaction as a deadlock's victim: nothing was done, and the same may
    /// succeed at once.
    Again(Error),
    /// The row was there already.
    Duplicate,
    /// It cannot be done.
    Error(Error),
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        Fail::Error(error)
    }
}

impl Fail {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Fail::Again(error) | Fail::Error(error) => error,
            Fail::Duplicate => corrupt_table("a row stands twice"),
        }
    }
}

pub(crate) type Step<T> = Result<T, Fail>;

/// What an error of the driver means. Whether the connection can be used again is its own matter;
/// see [`is_fatal`].
pub(crate) fn from_driver(error: My) -> Fail {
    match error {
        My::Server(server) => from_server(server),
        My::Io(IoError::Tls(tls)) => Fail::Error(no_tls(&tls)),
        My::Io(IoError::Io(io)) if io.get_ref().is_some_and(|e| e.is::<rustls::Error>()) => {
            Fail::Error(no_tls(&io))
        }
        My::Io(IoError::Io(io)) => Fail::Error(
            made(ErrorKind::Unreachable, format!("there is no connection: {io}")).caused_by(io),
        ),
        My::Driver(DriverError::ConnectionClosed) => {
            Fail::Error(made(ErrorKind::Unreachable, "the server closed the connection"))
        }
        My::Driver(DriverError::NoClientSslFlagFromServer) => Fail::Error(
            made(ErrorKind::Config, "the server does not speak TLS")
                .advise("give it a certificate, or name it with `?tls=off`"),
        ),
        My::Driver(
            DriverError::CleartextPluginDisabled | DriverError::UnknownAuthPlugin { .. },
        ) => Fail::Error(made(
            ErrorKind::Config,
            "the server asks for a way of logging in that is not supported",
        )),
        other => {
            let detail = "the server's answer is not understood";
            Fail::Error(made(ErrorKind::Unreachable, detail).caused_by(other))
        }
    }
}

fn no_tls(why: &dyn std::fmt::Display) -> Error {
    made(ErrorKind::Config, format!("TLS failed: {why}"))
        .advise("check `ca`, `cert`, `key` and `server_name` in the store's URL")
}

/// Whether a connection that met this cannot be used again.
pub(crate) fn is_fatal(error: &My) -> bool {
    match error {
        My::Server(server) => matches!(
            server.code,
            // Shutting down, killed, read-only: another session, perhaps of another server.
            1053 | 1077
                | 1078
                | 1079
                | 1080
                | 1152
                | 1184
                | 1290
                | 1792
                | 1836
                | 1927
                | 3169
                | 4031
        ),
        _ => true,
    }
}

fn from_server(error: ServerError) -> Fail {
    let code = error.code;
    let unavailable = |detail: &str| made(ErrorKind::Unavailable, detail);
    let told = match code {
        1062 => return Fail::Duplicate,
        1213 | 3058 => {
            return Fail::Again(unavailable("the server saw a deadlock").caused_by(error));
        }
        1205 | 3572 => {
            let told = unavailable("its row is locked by another transaction").advise(
                "see which transaction keeps rows of leasehold's tables locked, and end it",
            );
            return Fail::Error(told.caused_by(error));
        }
        1044 | 1045 | 1698 => {
            made(ErrorKind::Permission, "the server refuses this user or password")
        }
        1142 | 1143 | 1227 | 1370 => {
            made(ErrorKind::Permission, "this user may not do it").advise(GRANTS)
        }
        1049 => made(ErrorKind::Config, "there is no such database")
            .advise("create it, or name another in the store's URL"),
        1046 => made(ErrorKind::Config, "the store's URL names no database"),
        3159 => made(ErrorKind::Config, "the server takes connections with TLS only")
            .advise("add `?tls=on` to the store's URL"),
        1146 => made(ErrorKind::Replaced, "its tables are gone")
            .advise("what it held is lost; open the store again"),
        1054 | 1136 | 1264 | 1265 | 1364 | 1366 | 1406 => {
            corrupt_table("its tables are not as leasehold made them")
        }
        1040 | 1203 | 1226 => unavailable("the server has no connection left for this user"),
        1290 | 1792 | 1836 => {
            unavailable("the server is read-only").advise("name the primary in the store's URL")
        }
        1114 | 1021 | 1030 | 1041 | 1037 => unavailable("the server is out of space or memory"),
        1665 => made(ErrorKind::Config, "the server's binlog_format is STATEMENT").advise(BINLOG),
        1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 4031 => {
            made(ErrorKind::Unreachable, "the server ended the connection")
        }
        1317 | 1028 | 1969 | 3024 => unavailable("the statement was interrupted"),
        _ => unavailable("the server refused the step"),
    };
    Fail::Error(told.caused_by(error))
}

/// What a user of the tables has to be allowed.
pub(crate) const GRANTS: &str =
    "grant SELECT, INSERT, UPDATE and DELETE on the tables leasehold_% to it";
pub(crate) const BINLOG: &str = "set binlog_format to MIXED or ROW";

pub(crate) fn made(kind: ErrorKind, detail: impl Into<String>) -> Error {
    Error::new(kind, DOING, detail)
}

pub(crate) fn closed() -> Error {
    made(ErrorKind::Closed, "the store was closed")
}

/// A name that cannot be one.
pub(crate) fn bad_name() -> Error {
    made(ErrorKind::Corrupt, "a name in it is not one that leasehold takes")
}

pub(crate) fn corrupt_table(detail: &str) -> Error {
    made(ErrorKind::Corrupt, detail)
        .advise("compare them with the output of `leasehold schema mysql`")
}

/// A row that cannot be right.
pub(crate) fn corrupt(resource: &ResourceName, what: &str) -> Error {
    made(ErrorKind::Corrupt, format!("its row cannot be trusted: {what}"))
        .on(resource)
        .advise("delete the row when nobody uses the resource")
}
