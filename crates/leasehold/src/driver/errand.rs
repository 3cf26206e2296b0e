//! Calls that somebody waits for, with a limit on how long.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use futures_lite::future;
use leasehold_core::{Moment, Result};

use super::thread::at_store;
use super::{BoxFuture, Shared, no_answer};

/// A call that the driver makes for a caller.
pub(super) struct Errand {
    /// Then it has had its time.
    pub(super) limit: Moment,
    pub(super) call: BoxFuture<()>,
}

impl Shared {
    /// Runs a store call: where it was asked for if the store allows it, else on the driver.
    ///
    /// `doing` is for the error, should the call have no answer within the time that one may take.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        doing: &'static str,
        call: BoxFuture<Result<T>>,
    ) -> Result<T> {
        self.called(doing, call).await.map_err(|error| at_store(self, error))
    }

    async fn called<T: Send + 'static>(
        self: &Arc<Self>,
        doing: &'static str,
        call: BoxFuture<Result<T>>,
    ) -> Result<T> {
        let limit = self.clock().now() + self.call_within();
        if self.store().profile().polls_anywhere {
            let overdue = async {
                self.sleep_until(limit).await;
                Err(no_answer(doing).maybe_applied())
            };
            return future::or(call, overdue).await;
        }
        let slot = Arc::new(Slot::default());
        let filler = Filler { slot: Arc::clone(&slot), doing, is_filled: false };
        let call = Box::pin(async move { filler.fill(call.await) });
        self.run_errand(Errand { limit, call })?;
        SlotTaken(slot).await
    }

    fn run_errand(self: &Arc<Self>, errand: Errand) -> Result<()> {
        let mut desk = self.desk();
        self.ensure_running(&mut desk)?;
        desk.errands.push_back(errand);
        drop(desk);
        self.bell().ring();
        Ok(())
    }
}

/// The answer to an errand, once the driver has it.
#[derive(Debug)]
struct Slot<T>(Mutex<(Option<T>, Option<Waker>)>);

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot(Mutex::new((None, None)))
    }
}

impl<T> Slot<T> {
    fn fill(&self, answer: T) {
        let mut slot = self.0.lock().unwrap_or_else(|e| e.into_inner());
        slot.0 = Some(answer);
        let waker = slot.1.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Fills a slot, also when the call is dropped without an answer.
struct Filler<T> {
    slot: Arc<Slot<Result<T>>>,
    doing: &'static str,
    is_filled: bool,
}

impl<T> Filler<T> {
    fn fill(mut self, answer: Result<T>) {
        self.is_filled = true;
        self.slot.fill(answer);
    }
}

impl<T> Drop for Filler<T> {
    fn drop(&mut self) {
        if !self.is_filled {
            self.slot.fill(Err(no_answer(self.doing).maybe_applied()));
        }
    }
}

struct SlotTaken<T>(Arc<Slot<T>>);

impl<T> Future for SlotTaken<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.0.lock().unwrap_or_else(|e| e.into_inner());
        match slot.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                let old = slot.1.replace(cx.waker().clone());
                drop(slot);
                drop(old); // it may be the last of a task, and drop anything
                Poll::Pending
            }
        }
    }
}
