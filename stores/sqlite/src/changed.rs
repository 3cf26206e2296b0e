//! Waiting without a thread: for something to happen on a resource, or for a short while.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use leasehold_core::{Cursor, Hint, ResourceName};

use crate::hub::{Hub, State};

impl Hub {
    /// Waits for something to happen on a resource.
    pub(crate) async fn changed(
        self: &Arc<Hub>,
        resource: &ResourceName,
        since: Cursor,
        at_most: Duration,
    ) -> Hint {
        let timer = Timer { hub: self, deadline: deadline(at_most), key: None };
        Changed { timer, resource, since }.await
    }

    /// Waits a short while.
    pub(crate) async fn sleep(self: &Arc<Hub>, span: Duration) {
        let mut timer = Timer { hub: self, deadline: deadline(span), key: None };
        std::future::poll_fn(|cx| timer.poll_timer(&mut self.lock(), cx)).await;
    }
}

/// A deadline far enough away stands for never.
fn deadline(span: Duration) -> Instant {
    Instant::now() + span.min(Duration::from_secs(3600 * 24 * 365))
}

/// A timer that goes away with its future.
struct Timer<'h> {
    hub: &'h Arc<Hub>,
    deadline: Instant,
    key: Option<(Instant, u64)>,
}

impl Timer<'_> {
    fn key(&mut self, state: &mut State) -> (Instant, u64) {
        *self.key.get_or_insert_with(|| {
            state.next_timer += 1;
            (self.deadline, state.next_timer)
        })
    }

    /// Ready when the time has come, or the hub is closed.
    fn poll_timer(&mut self, state: &mut State, cx: &Context<'_>) -> Poll<()> {
        if state.closed || Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let key = self.key(state);
        let is_first = state.timers.keys().next().is_none_or(|first| key < *first);
        state.timers.insert(key, cx.waker().clone());
        if (is_first || state.thread.is_none()) && self.hub.start(state).is_err() {
            // Without a thread nobody would wake this: stay awake.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let removed = self.hub.lock().timers.remove(&key);
            drop(removed);
        }
    }
}

struct Changed<'c> {
    timer: Timer<'c>,
    resource: &'c ResourceName,
    since: Cursor,
}

impl Future for Changed<'_> {
    type Output = Hint;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Hint> {
        let hub = self.timer.hub;
        let mut state = hub.lock();
        let resource = self.resource;
        let slot = state.slot(resource);
        if let Some(pushed) = slot.pushed.pop_front() {
            return Poll::Ready(Hint::Granted(pushed));
        }
        let cursor = Cursor(slot.cursor);
        if cursor > self.since {
            return Poll::Ready(Hint::Moved(cursor));
        }
        let (_, number) = self.timer.key(&mut state);
        state.slot(resource).wakers.insert(number, cx.waker().clone());
        let since = self.since;
        match self.timer.poll_timer(&mut state, cx) {
            Poll::Ready(()) => Poll::Ready(Hint::Moved(since.max(cursor))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        let mut state = self.timer.hub.lock();
        let own = self.timer.key.and_then(|(_, number)| {
            state.slots.get_mut(self.resource).and_then(|slot| slot.wakers.remove(&number))
        });
        state.tidy(self.resource);
        drop(state);
        drop(own); // it may drop a task that takes the lock again
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Wake;

    use super::*;
    use crate::files::Share;
    use crate::live::Liveness;
    use crate::machine::Machine;

    struct Own;

    impl Wake for Own {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn whoever_stops_waiting_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share { mode: 0o600, owner: 0, group: 0 };
        let live = Arc::new(Liveness::open(&dir.path().join("live"), share).unwrap());
        let hub = Hub::new(live, Machine::local().unwrap(), dir.path().join("wake"), share);
        let name = ResourceName::new("r").unwrap();
        let long = Duration::from_secs(600);
        let mut stays = Box::pin(hub.changed(&name, Cursor::default(), long));
        let waker = Arc::new(Own).into();
        assert!(stays.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        for _ in 0..100 {
            // Each by a task of its own, as in a set of futures.
            let waker = Arc::new(Own).into();
            let mut goes = Box::pin(hub.changed(&name, Cursor::default(), long));
            assert!(goes.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(hub.lock().slots[&name].wakers.len(), 1);
        drop(stays);
        assert!(hub.lock().slots.is_empty());
        hub.close();
    }
}
