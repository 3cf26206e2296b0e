//! The one error of leasehold: a kind for machines, a sentence for people, and whether the thing
//! may have happened.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use crate::name::ResourceName;

/// The result of anything that can fail.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// What failed, on which resource and store, whether it may have happened, and what to do.
///
/// Contention is not an error, nor is the loss of a lease: those are answers. Secrets never show.
/// One pointer wide, and cheap to clone.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    applied: Applied,
    doing: &'static str,
    resource: Option<ResourceName>,
    store: Option<String>,
    detail: String,
    advice: Option<&'static str>,
    source: Option<Box<dyn core::error::Error + Send + Sync>>,
}

/// What a program may decide on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, term, limit or mode is out of bounds, or a resource is of another kind.
    Usage,
    /// The store's URL, configuration or place is unfit.
    Config,
    /// The store refuses these credentials or this user.
    Permission,
    /// The store was not reached, or did not answer in time. Trying again may help.
    Unreachable,
    /// The store answered that it cannot now: full, read-only, overloaded. Trying again may help.
    Unavailable,
    /// What was read from the store cannot be right.
    Corrupt,
    /// The store that was opened is not there any more, or another stands in its place.
    Replaced,
    /// The store was written by a version that this one does not know.
    Version,
    /// This store cannot do it; its profile says so.
    Unsupported,
    /// The client was closed.
    Closed,
    /// A defect of leasehold.
    Bug,
}

impl ErrorKind {
    /// Whether the same call may succeed if it is simply made again later.
    pub const fn is_transient(self) -> bool {
        matches!(self, ErrorKind::Unreachable | ErrorKind::Unavailable)
    }
}

/// Whether a call that failed may have taken effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Applied {
    /// Certainly not.
    No,
    /// Perhaps: its reply was lost or unclear.
    Maybe,
}

impl Error {
    /// An error while `doing` something ("open the store", "enter the queue"), with its detail.
    ///
    /// `doing` fits after "failed to"; `detail` is lower case, without a full stop and without
    /// secrets. It says that nothing happened; see [`Error::maybe_applied`].
    pub fn new(kind: ErrorKind, doing: &'static str, detail: impl Into<String>) -> Error {
        Error(Arc::new(Inner {
            kind,
            applied: Applied::No,
            doing,
            resource: None,
            store: None,
            detail: detail.into(),
            advice: None,
            source: None,
        }))
    }

    fn change(self, change: impl FnOnce(&mut Inner)) -> Error {
        let mut inner = Arc::try_unwrap(self.0).unwrap_or_else(|shared| Inner {
            kind: shared.kind,
            applied: shared.applied,
            doing: shared.doing,
            resource: shared.resource.clone(),
            store: shared.store.clone(),
            detail: shared.detail.clone(),
            advice: shared.advice,
            source: None,
        });
        change(&mut inner);
        Error(Arc::new(inner))
    }

    /// The same error, met while doing this: a layer that is used for many things does not know
    /// for which.
    #[must_use]
    pub fn while_doing(self, doing: &'static str) -> Error {
        self.change(|inner| inner.doing = doing)
    }

    /// The same error, on this resource.
    #[must_use]
    pub fn on(self, resource: &ResourceName) -> Error {
        self.change(|inner| inner.resource = Some(resource.clone()))
    }

    /// The same error, at this store, named without its secret.
    #[must_use]
    pub fn at(self, store: impl Into<String>) -> Error {
        self.change(|inner| inner.store = Some(store.into()))
    }

    /// The same error, but the call may have taken effect.
    #[must_use]
    pub fn maybe_applied(self) -> Error {
        self.change(|inner| inner.applied = Applied::Maybe)
    }

    /// The same error with what the user can do about it.
    #[must_use]
    pub fn advise(self, advice: &'static str) -> Error {
        self.change(|inner| inner.advice = Some(advice))
    }

    /// The same error, caused by this one.
    #[must_use]
    pub fn caused_by(self, source: impl core::error::Error + Send + Sync + 'static) -> Error {
        self.change(|inner| inner.source = Some(Box::new(source)))
    }

    /// What a program may decide on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the call may have taken effect.
    pub fn applied(&self) -> Applied {
        self.0.applied
    }

    /// The resource, where there was one.
    pub fn resource(&self) -> Option<&ResourceName> {
        self.0.resource.as_ref()
    }

    /// The store, named without its secret, where there was one.
    pub fn store(&self) -> Option<&str> {
        self.0.store.as_deref()
    }

    /// What the user can do about it, where that is known.
    pub fn advice(&self) -> Option<&'static str> {
        self.0.advice
    }
}

impl fmt::Display for Error {
    /// One line: `enter the queue on "nightly" at sqlite:/x: the disk is full; free some space`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.write_str(inner.doing)?;
        if let Some(resource) = &inner.resource {
            write!(f, " on {resource:?}")?;
        }
        if let Some(store) = &inner.store {
            write!(f, " at {store}")?;
        }
        write!(f, ": {}", inner.detail)?;
        if inner.applied == Applied::Maybe {
            f.write_str(" (it may have happened)")?;
        }
        if let Some(advice) = inner.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.0.kind).field("applied", &self.0.applied);
        debug.field("message", &format_args!("{self}"));
        if let Some(source) = &self.0.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn core::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn one_line_says_what_where_and_whether() {
        let name = ResourceName::new("nightly").unwrap();
        let error = Error::new(ErrorKind::Unavailable, "enter the queue", "the disk is full")
            .on(&name)
            .at("sqlite:/x")
            .maybe_applied()
            .advise("free some space");
        assert_eq!(
            error.to_string(),
            "enter the queue on \"nightly\" at sqlite:/x: the disk is full \
             (it may have happened); free some space"
        );
        assert_eq!(error.clone().kind(), ErrorKind::Unavailable);
        assert!(error.kind().is_transient());
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
