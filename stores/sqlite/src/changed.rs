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
    /// Ready when the time has come, or the hub is closed.
    fn poll_timer(&mut self, state: &mut State, cx: &Context<'_>) -> Poll<()> {
        if state.closed || Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            state.next_timer += 1;
            (self.deadline, state.next_timer)
        });
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
        if !slot.wakers.iter().any(|w| w.will_wake(cx.waker())) {
            slot.wakers.push(cx.waker().clone());
        }
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
        if let Some(slot) = state.slots.get(self.resource)
            && slot.claims == 0
            && slot.wakers.len() <= 1
        {
            state.slots.remove(self.resource);
        }
    }
}
