//! The clocks of this machine, and one that a test sets by hand.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use leasehold_core::{Clock, ClockKind, Moment};
use rustix::time::{ClockId, clock_gettime};

/// A clock of the operating system.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    id: ClockId,
}

impl SystemClock {
    /// The clock of this kind.
    pub fn new(kind: ClockKind) -> SystemClock {
        let id = match kind {
            ClockKind::Boot => ClockId::Boottime,
            ClockKind::Monotonic => ClockId::Monotonic,
        };
        SystemClock { id }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let at = clock_gettime(self.id);
        let seconds = u64::try_from(at.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(at.tv_nsec).unwrap_or_default();
        Moment::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}

/// A clock that stands still until a test moves it.
///
/// For tests of code that uses leases, with the [in-memory store](crate::memory::Memory): what a
/// lease does after a minute is seen at once.
#[derive(Debug, Default)]
pub struct HandClock {
    now: AtomicU64,
    watchers: Mutex<Vec<Waker>>,
}

impl HandClock {
    /// A clock that shows an hour.
    pub fn new() -> HandClock {
        HandClock { now: AtomicU64::new(3_600_000_000_000), watchers: Mutex::default() }
    }

    /// Moves it on.
    pub fn advance(&self, span: Duration) {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.now.fetch_add(span, Ordering::SeqCst);
        let watchers = self.watchers.lock().unwrap_or_else(|e| e.into_inner()).clone();
        watchers.iter().for_each(Waker::wake_by_ref);
    }

    /// Wakes this task whenever the clock is moved, from now on.
    pub(crate) fn watch(&self, waker: &Waker) {
        let mut watchers = self.watchers.lock().unwrap_or_else(|e| e.into_inner());
        if !watchers.iter().any(|w| w.will_wake(waker)) {
            watchers.push(waker.clone());
        }
    }
}

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.now.load(Ordering::SeqCst))
    }
}
