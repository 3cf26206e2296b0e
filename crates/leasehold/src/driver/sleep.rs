//! Sleeping by the client's clock: the driver wakes whoever sleeps.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use leasehold_core::Moment;

use super::Shared;

type Wakers = BTreeMap<(Moment, u64), Waker>;

/// Who sleeps.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    /// The driver goes on for them.
    lasting: Wakers,
    /// The driver may end before they wake.
    beside: Wakers,
}

impl Sleepers {
    fn of(&mut self, is_beside: bool) -> &mut Wakers {
        if is_beside { &mut self.beside } else { &mut self.lasting }
    }

    /// Whether the driver may end.
    pub(super) fn is_empty(&self) -> bool {
        self.lasting.is_empty()
    }

    /// When the first is to be woken.
    pub(super) fn next_wake(&self) -> Option<Moment> {
        let first = |wakers: &Wakers| wakers.first_key_value().map(|((at, _), _)| *at);
        [first(&self.lasting), first(&self.beside)].into_iter().flatten().min()
    }

    /// Takes out those whose time has come.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Waker> {
        let mut due = Vec::new();
        for wakers in [&mut self.lasting, &mut self.beside] {
            while let Some(first) = wakers.first_entry()
                && first.key().0 <= now
            {
                due.push(first.remove());
            }
        }
        due
    }
}

/// The future of [`Shared::sleep_until`].
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    until: Moment,
    is_beside: bool,
    key: Option<(Moment, u64)>,
}

impl Sleep {
    pub(super) fn new(shared: Arc<Shared>, until: Moment, is_beside: bool) -> Sleep {
        Sleep { shared, until, is_beside, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.clock().now() >= self.until {
            return Poll::Ready(());
        }
        let shared = Arc::clone(&self.shared);
        let mut desk = shared.desk();
        if !self.is_beside && shared.ensure_running(&mut desk).is_err() {
            // Without a thread nobody would wake this: stay awake.
            drop(desk);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                desk.next_id += 1;
                (self.until, desk.next_id)
            }
        };
        let old = desk.sleepers.of(self.is_beside).insert(key, cx.waker().clone());
        let is_first = self.until < desk.asleep_until;
        drop(desk);
        drop(old); // it may be the last of a task, and drop anything
        if is_first {
            shared.bell().ring();
        }
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut desk = self.shared.desk();
            let waker = desk.sleepers.of(self.is_beside).remove(&key);
            let rings = desk.sleepers.is_empty() && self.shared.is_closing();
            drop(desk);
            drop(waker);
            if rings {
                self.shared.bell().ring();
            }
        }
    }
}
