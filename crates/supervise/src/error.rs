//! What can go wrong before a command runs.

use std::fmt;
use std::io;

/// A failure of the operating system or of the caller's input: what was being done, and why it
/// failed. The text is lower case and fits after "failed to".
#[derive(Debug)]
pub struct Error {
    what: &'static str,
    source: io::Error,
}

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) const fn new(what: &'static str, source: io::Error) -> Self {
        Self { what, source }
    }

    pub(crate) fn invalid(what: &'static str, why: &'static str) -> Self {
        Self { what, source: io::Error::new(io::ErrorKind::InvalidInput, why) }
    }

    /// The operating system's error number, if it had one.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// Whether the caller's input was refused (too large, a NUL byte), rather than the system.
    #[must_use]
    pub fn is_invalid_input(&self) -> bool {
        self.source.kind() == io::ErrorKind::InvalidInput
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Names what was being done when an `io::Error` came.
pub(crate) trait Context<T> {
    fn context(self, what: &'static str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: &'static str) -> Result<T> {
        self.map_err(|source| Error::new(what, source))
    }
}
