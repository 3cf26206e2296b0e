//! An acquisition that the driver sees through, and the handle by which its task waits for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use leasehold_core::acquire::Effect;
use leasehold_core::{Acquire, ResourceName};

use super::{Kept, Shared, no_driver};
use crate::observer::Observer;
use crate::request::AcquireError;

/// What an acquisition came to: a grant in the driver's care, or why there is none.
pub(crate) type Acquired = Result<Kept, AcquireError>;

/// An acquisition under way: its machine, and what it asked for that is not done yet.
///
/// One that is dropped without an outcome tells whoever waits that it failed.
pub(crate) struct Job {
    pub(crate) machine: Acquire,
    pub(crate) resource: ResourceName,
    /// Asked for before the driver took over.
    pub(crate) effects: Vec<Effect>,
    pub(super) outcome: Arc<OutcomeCell>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Whether the lease is to be renewed.
    pub(crate) renewed: bool,
}

impl Job {
    /// A job with nothing done yet.
    pub(crate) fn new(
        machine: Acquire,
        resource: ResourceName,
        observer: Option<Arc<dyn Observer>>,
        renewed: bool,
    ) -> Job {
        let outcome = Arc::default();
        Job { machine, resource, effects: Vec::new(), outcome, observer, renewed }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.outcome.is_delivered() {
            self.outcome.deliver(Err(no_driver("acquire a lease").into()));
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("machine", &self.machine).finish_non_exhaustive()
    }
}

/// Where the outcome is left for the task.
#[derive(Debug, Default)]
pub(crate) struct OutcomeCell {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    outcome: Option<Acquired>,
    waker: Option<Waker>,
    delivered: bool,
    abandoned: bool,
}

impl OutcomeCell {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn is_delivered(&self) -> bool {
        self.lock().delivered
    }

    /// Leaves the outcome, or hands it back because nobody will take it.
    pub(super) fn deliver(&self, outcome: Acquired) -> Option<Acquired> {
        let mut inner = self.lock();
        inner.delivered = true;
        if inner.abandoned {
            return Some(outcome);
        }
        inner.outcome = Some(outcome);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}

/// Waits for the outcome of a job. Dropping it cancels the job and gives back what it granted.
#[derive(Debug)]
pub(crate) struct JobHandle {
    pub(super) id: u64,
    pub(super) cell: Arc<OutcomeCell>,
    pub(super) shared: Arc<Shared>,
}

impl Future for JobHandle {
    type Output = Acquired;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Acquired> {
        let mut inner = self.cell.lock();
        match inner.outcome.take() {
            Some(outcome) => {
                inner.abandoned = true;
                Poll::Ready(outcome)
            }
            None => {
                let old = inner.waker.replace(cx.waker().clone());
                drop(inner);
                drop(old); // it may be the last of a task, and drop anything
                Poll::Pending
            }
        }
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        let mut inner = self.cell.lock();
        let taken = inner.abandoned;
        inner.abandoned = true;
        let outcome = inner.outcome.take();
        drop(inner);
        match outcome {
            Some(Ok(kept)) => self.shared.give_back(&kept),
            Some(_) => {}
            None if taken => {}
            None => self.shared.cancel(self.id),
        }
    }
}
