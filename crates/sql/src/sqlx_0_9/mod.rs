//! sqlx 0.9: a statement is prepared once a connection, as sqlx does for its own queries, and in
//! one round trip from then on.

#[cfg(feature = "sqlx-0_9-mysql")]
mod mysql;
#[cfg(feature = "sqlx-0_9-postgres")]
mod postgres;
#[cfg(feature = "sqlx-0_9-sqlite")]
mod sqlite;

use crate::{Class, Error};

/// What is an error of sqlx and not of the database; a database's own is `known`.
fn failed(error: sqlx::Error, known: impl Fn(&sqlx::Error) -> Option<(Class, String)>) -> Error {
    if let Some((class, code)) = known(&error) {
        return Error::new(class, Some(code), error);
    }
    let class = match &error {
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => Class::Connection,
        _ => Class::Other,
    };
    Error::new(class, None, error)
}

/// The verbs, by this connection.
macro_rules! verbs {
    ($engine:expr, |$this:ident| $connection:expr) => {
        fn engine(&self) -> Engine {
            $engine
        }

        fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
            let $this = self;
            Box::pin(rows($connection, statement, values))
        }

        fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
            let $this = self;
            Box::pin(execute($connection, statement, values))
        }
    };
}
use verbs;
