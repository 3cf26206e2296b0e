//! The one error of the fences: a kind for machines, a chain for people, and whether the access
//! may have happened.

use std::fmt;

use leasehold_core::{Applied, Stale};

/// The result of a fence's call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a fence did not let an access pass, or could not tell.
///
/// Its text says what failed and on what, and fits after "failed to"; the cause, if there is one,
/// is its [`source`](std::error::Error::source).
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    applied: Applied,
    text: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What a program may decide on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A newer holder has been here: this lease has ended, whatever its holder believes. Stop.
    Stale(Stale),
    /// As [`ErrorKind::Stale`], by a token of an earlier epoch: the resource has moved to another
    /// store since, or its store was restored, and its tokens began anew.
    OtherEpoch(Stale),
    /// Someone else is inside, and was still when the wait was over. Trying again may help.
    Busy,
    /// The transaction has read what has changed since: roll it back and run it again whole.
    Restart,
    /// There is no transaction, and a check outside the one that writes proves nothing.
    NotInTransaction,
    /// The transaction has failed before, and takes nothing but a rollback.
    Aborted,
    /// This mark was not raised before: `enter` must come before the first read.
    NotEntered,
    /// There is no such row: nothing was changed, and no token was compared.
    Missing,
    /// There is no such table.
    NoTable,
    /// The table has no such column.
    NoColumn,
    /// The database does not let this role do it.
    Permission,
    /// The name cannot name a resource, a table or a column.
    Usage,
    /// What the fence remembers cannot be read. It is not trusted, and nothing passes.
    Corrupt,
    /// The protected thing, or the place it is in, is not one this fence can guard.
    Unsupported,
    /// The operating system or the database failed; the source says how.
    Io,
}

// Without a fence there is nothing to fail.
#[cfg_attr(
    not(any(
        feature = "etcd",
        feature = "file",
        feature = "redis",
        feature = "sql",
        feature = "sqlite",
        feature = "zookeeper"
    )),
    allow(dead_code)
)]
impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, applied: Applied::No, text: text.into(), source: None }))
    }

    /// The refusal of a stale mark while `doing` something.
    pub(crate) fn stale(doing: &str, stale: Stale) -> Error {
        if stale.offered.epoch == stale.newest.epoch {
            return Error::new(ErrorKind::Stale(stale), format!("{doing}: {stale}"));
        }
        let text = format!(
            "{doing}: stale token {} of epoch {} refused: a holder with token {} of epoch {} has \
             been here; take the lock anew",
            stale.offered.token, stale.offered.epoch.0, stale.newest.token, stale.newest.epoch.0
        );
        Error::new(ErrorKind::OtherEpoch(stale), text)
    }

    #[cfg_attr(not(any(feature = "file", feature = "sql", feature = "sqlite")), allow(dead_code))]
    pub(crate) fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        self.0.source = Some(source.into());
        self
    }

    #[cfg(feature = "file")]
    pub(crate) fn maybe_applied(mut self) -> Error {
        self.0.applied = Applied::Maybe;
        self
    }

    /// What a program may decide on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the protected thing may have been changed all the same.
    ///
    /// A mark that was raised counts as nothing: the newer holder exists either way.
    pub fn applied(&self) -> Applied {
        self.0.applied
    }

    /// The refusal, if this is one.
    pub fn stale_mark(&self) -> Option<Stale> {
        match self.0.kind {
            ErrorKind::Stale(stale) | ErrorKind::OtherEpoch(stale) => Some(stale),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)?;
        match self.0.applied {
            Applied::No => Ok(()),
            Applied::Maybe => f.write_str("; it may have happened"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("applied", &self.0.applied)
            .field("text", &self.0.text)
            .field("source", &self.0.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }
}
