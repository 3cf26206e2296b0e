//! What has happened to the servers that may have ended claims or lost words.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// How many disturbances are remembered one by one.
const PAST_MAX: usize = 128;
/// The number of slots; a deployment without slots counts as one that has them all.
pub(crate) const SLOTS: u16 = 16384;

/// What happened, the worse the later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Cause {
    /// A connection was cut: words may have been lost.
    Reconnected,
    /// The slot is at another node.
    Moved,
    /// The server has started anew, or another stands at its address.
    Restarted,
    /// Another server is the master.
    Failover,
}

/// Slots, as ranges with both ends included.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slots(pub(crate) Vec<(u16, u16)>);

impl Slots {
    pub(crate) fn all() -> Slots {
        Slots(vec![(0, SLOTS - 1)])
    }

    pub(crate) fn one(slot: u16) -> Slots {
        Slots(vec![(slot, slot)])
    }

    pub(crate) fn contains(&self, slot: u16) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&slot))
    }

    /// Adds a slot above all that are there.
    pub(crate) fn push(&mut self, slot: u16) {
        match self.0.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => self.0.push((slot, slot)),
        }
    }
}

/// The disturbances so far.
#[derive(Debug)]
pub(crate) struct Disturbances {
    now: watch::Sender<u64>,
    past: Mutex<Past>,
}

#[derive(Debug, Default)]
struct Past {
    recent: VecDeque<(u64, Cause, Slots)>,
    /// The last of those that are no longer known one by one, and the worst of them.
    folded: Option<(u64, Cause)>,
}

impl Disturbances {
    pub(crate) fn new() -> Disturbances {
        Disturbances { now: watch::Sender::new(1), past: Mutex::default() }
    }

    /// How many there have been, and one.
    pub(crate) fn epoch(&self) -> u64 {
        *self.now.borrow()
    }

    /// Resolves with the current epoch once it is above `since`.
    pub(crate) async fn after(&self, since: u64) -> u64 {
        let mut now = self.now.subscribe();
        let reached = now.wait_for(|epoch| *epoch > since).await.map(|epoch| *epoch);
        match reached {
            Ok(epoch) => epoch,
            Err(_) => std::future::pending().await,
        }
    }

    pub(crate) fn add(&self, cause: Cause, slots: Slots) {
        self.now.send_modify(|epoch| {
            *epoch += 1;
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            if past.recent.len() == PAST_MAX
                && let Some((at, oldest, _)) = past.recent.pop_front()
            {
                let worst = past.folded.map_or(oldest, |(_, cause)| cause.max(oldest));
                past.folded = Some((at, worst));
            }
            past.recent.push_back((*epoch, cause, slots));
        });
    }

    /// The worst that has happened to a slot after an epoch.
    pub(crate) fn cause_since(&self, slot: u16, epoch: u64) -> Option<Cause> {
        let past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let folded = past.folded.filter(|(at, _)| *at > epoch).map(|(_, cause)| cause);
        let recent =
            past.recent.iter().filter(|(at, _, slots)| *at > epoch && slots.contains(slot));
        recent.map(|&(_, cause, _)| cause).chain(folded).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn the_worst_since_an_epoch_is_told_for_its_slots_only() {
        let all = Disturbances::new();
        let before = all.epoch();
        all.add(Cause::Failover, Slots(vec![(0, 99)]));
        let between = all.epoch();
        all.add(Cause::Reconnected, Slots::all());
        assert_eq!(all.cause_since(7, before), Some(Cause::Failover));
        assert_eq!(all.cause_since(100, before), Some(Cause::Reconnected));
        assert_eq!(all.cause_since(7, between), Some(Cause::Reconnected));
        assert_eq!(all.cause_since(7, all.epoch()), None);
    }

    #[test]
    fn what_is_forgotten_counts_for_all() {
        let all = Disturbances::new();
        let before = all.epoch();
        all.add(Cause::Failover, Slots::one(5));
        for _ in 0..2 * PAST_MAX {
            all.add(Cause::Reconnected, Slots::one(6));
        }
        assert_eq!(all.cause_since(9, before), Some(Cause::Failover));
        assert_eq!(all.cause_since(9, all.epoch() - 3), None);
    }

    #[test]
    fn who_waits_is_told_at_once() {
        let all = Disturbances::new();
        let mut wait = Box::pin(all.after(1));
        assert!(block_on(poll_once(&mut wait)).is_none());
        all.add(Cause::Moved, Slots::one(1));
        assert_eq!(block_on(wait), 2);
        assert_eq!(block_on(all.after(0)), 2);
    }

    #[test]
    fn slots_are_kept_as_ranges() {
        let mut slots = Slots::default();
        for slot in [1, 2, 3, 7, 9, 10] {
            slots.push(slot);
        }
        assert_eq!(slots.0, [(1, 3), (7, 7), (9, 10)]);
        assert!(slots.contains(10) && !slots.contains(8));
    }
}
