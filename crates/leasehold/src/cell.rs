//! What a lease and the driver share: until when it is believed, and what became of it.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use event_listener::Event;
use leasehold_core::{Clock, Loss, Moment};

use crate::observer::Observer;

/// How a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum State {
    /// It is held.
    Held,
    /// It is held, but a renewal is overdue: it may be lost soon.
    AtRisk,
    /// It was lost. Final.
    Lost(Loss),
    /// Its owner released it. Final.
    Released,
}

const HELD: u8 = 0;
const AT_RISK: u8 = 1;
const LOST: u8 = 2;
const RELEASED: u8 = 3;

/// Shared by the lease, its `lost()` futures and the driver.
pub(crate) struct LeaseCell {
    until: AtomicU64,
    status: AtomicU8,
    loss: OnceLock<Loss>,
    changed: Event,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

impl LeaseCell {
    pub(crate) fn new(
        until: Moment,
        clock: Arc<dyn Clock>,
        observer: Option<Arc<dyn Observer>>,
    ) -> LeaseCell {
        LeaseCell {
            until: AtomicU64::new(until.as_nanos()),
            status: AtomicU8::new(HELD),
            loss: OnceLock::new(),
            changed: Event::new(),
            clock,
            observer,
        }
    }

    pub(crate) fn until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// As it stands by the clock, whether or not the driver has got to it: once the time is up
    /// nobody is told that the lease is held, and whoever sees it first makes it final.
    pub(crate) fn state(&self) -> State {
        match self.status.load(Ordering::Acquire) {
            LOST => State::Lost(self.loss.get().copied().unwrap_or(Loss::Expired)),
            RELEASED => State::Released,
            status if self.clock.now() >= self.until() => {
                let was_at_risk = status == AT_RISK;
                self.on_lost(if was_at_risk { Loss::Unreachable } else { Loss::Expired });
                self.state()
            }
            AT_RISK => State::AtRisk,
            _ => State::Held,
        }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn changed(&self) -> &Event {
        &self.changed
    }

    /// Believed until then; whether it had not ended before. What somebody saw as lost stays lost.
    pub(crate) fn on_kept(&self, until: Moment) -> bool {
        self.until.store(until.as_nanos(), Ordering::Release);
        let back = self.status.compare_exchange(AT_RISK, HELD, Ordering::AcqRel, Ordering::Acquire);
        if matches!(back, Err(LOST | RELEASED)) {
            return false;
        }
        if let Some(observer) = &self.observer {
            observer.kept(until);
        }
        true
    }

    pub(crate) fn on_at_risk(&self) {
        let moved =
            self.status.compare_exchange(HELD, AT_RISK, Ordering::AcqRel, Ordering::Acquire);
        if let (Ok(_), Some(observer)) = (moved, &self.observer) {
            observer.at_risk();
        }
    }

    pub(crate) fn on_retry(&self, error: &leasehold_core::Error) {
        if let Some(observer) = &self.observer {
            observer.retrying(error);
        }
    }

    /// Lost, unless it had ended before.
    pub(crate) fn on_lost(&self, loss: Loss) {
        if self.mark_lost(loss) {
            self.tell_lost(loss);
        }
    }

    /// The first half of [`LeaseCell::on_lost`], which calls nobody: whether it had not ended
    /// before.
    pub(crate) fn mark_lost(&self, loss: Loss) -> bool {
        // The reason stands before the status says that there is one. The first one counts.
        let _ = self.loss.set(loss);
        self.end(LOST)
    }

    /// The second half: tells whoever waits for it.
    pub(crate) fn tell_lost(&self, loss: Loss) {
        self.changed.notify(usize::MAX);
        if let Some(observer) = &self.observer {
            observer.lost(loss);
        }
    }

    /// Released, unless it had ended before; whether this call ended it.
    pub(crate) fn on_released(&self) -> bool {
        let ended = self.end(RELEASED);
        self.changed.notify(usize::MAX);
        ended
    }

    fn end(&self, status: u8) -> bool {
        let moved = self.status.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            (now == HELD || now == AT_RISK).then_some(status)
        });
        moved.is_ok()
    }
}

impl fmt::Debug for LeaseCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseCell")
            .field("until", &self.until())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::HandClock;
    use std::time::Duration;

    #[test]
    fn what_was_seen_as_lost_is_not_kept_by_a_later_answer() {
        let clock = Arc::new(HandClock::new());
        let until = clock.now() + Duration::from_secs(30);
        let cell = LeaseCell::new(until, Arc::clone(&clock) as Arc<dyn Clock>, None);
        clock.advance(Duration::from_secs(10));
        assert!(cell.on_kept(clock.now() + Duration::from_secs(30)));
        assert_eq!(cell.state(), State::Held);
        clock.advance(Duration::from_secs(30));
        assert_eq!(cell.state(), State::Lost(Loss::Expired), "whoever looks first makes it final");
        assert!(!cell.on_kept(clock.now() + Duration::from_secs(30)), "the claim has to leave");
        assert_eq!(cell.state(), State::Lost(Loss::Expired));
    }
}
