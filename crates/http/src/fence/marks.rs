//! Where a service keeps the marks of what it guards.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use leasehold_fence::{Access, Mark, Resource, Stale};

use crate::body::BoxError;

/// The marks of what a service guards, and who is inside.
#[async_trait]
pub trait FenceMarks: Send + Sync + 'static {
    /// Raises the mark of a resource, or refuses a stale one.
    ///
    /// # Behavior
    ///
    /// - The mark is raised before this returns, and so before the handler reads anything.
    /// - A refusal changes nothing.
    /// - The [`Passage`] is dropped when the handler and its answer are done. Whether a newer holder
    ///   waits for that is the implementation's to say.
    async fn enter(
        &self,
        resource: &Resource,
        access: Access,
        mark: Mark,
    ) -> Result<Passage, Refused>;
}

/// Shared with who wants to look at the marks.
#[async_trait]
impl<M: FenceMarks> FenceMarks for Arc<M> {
    async fn enter(
        &self,
        resource: &Resource,
        access: Access,
        mark: Mark,
    ) -> Result<Passage, Refused> {
        M::enter(self, resource, access, mark).await
    }
}

/// Why a holder was not let in.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// A newer holder has been here.
    Stale(Stale),
    /// Another holder is inside, and was still when the wait was over.
    Busy,
    /// Whether it is stale cannot be told now.
    Failed(BoxError),
}

/// What is kept while a request is inside.
#[must_use = "whoever is inside leaves when this is dropped"]
pub struct Passage(Option<Box<dyn Send>>);

impl Passage {
    /// One that nobody waits for.
    pub fn open() -> Passage {
        Passage(None)
    }

    /// One that keeps this until the request is done.
    pub fn keeping(kept: impl Send + 'static) -> Passage {
        Passage(Some(Box::new(kept)))
    }
}

impl fmt::Debug for Passage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeps = self.0.is_some();
        f.debug_struct("Passage").field("keeps", &keeps).finish()
    }
}
