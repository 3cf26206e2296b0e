//! What a database refused, sorted by what a program may do about it.

use std::fmt;

use crate::Class;

/// The result of one statement.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a database or its driver said about one statement.
///
/// Its text says what it means; the words of the database are in its
/// [`source`](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
pub struct Error {
    class: Class,
    code: Option<String>,
    #[source]
    source: Box<dyn std::error::Error + Send + Sync>,
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

    /// A column that is none of what [`Value`](crate::Value) can be.
    #[cfg_attr(
        not(any(
            feature = "mysql_async-0_37",
            feature = "rusqlite-0_40",
            feature = "sqlx-0_9-mysql",
            feature = "sqlx-0_9-postgres",
            feature = "sqlx-0_9-sqlite",
            feature = "tokio-postgres-0_7"
        )),
        allow(dead_code)
    )]
    pub(crate) fn unread(at: usize, of: impl fmt::Display) -> Error {
        let text = format!(
            "column {at} of the answer is of type {of}; cast it in the statement to an integer of \
             64 bits, a text or bytes"
        );
        Error::new(Class::Other, None, text)
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
