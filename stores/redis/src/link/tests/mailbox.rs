//! A listener that keeps what it hears, for tests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use super::super::board::{Event, Listener};

/// What was heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    /// Somebody said this.
    Message(Vec<u8>),
    /// Something may have been missed: look.
    Nudge,
}

/// The words for one who listens.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    words: VecDeque<Heard>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(crate) fn listener(to: &Arc<Mailbox>) -> Listener {
        let to = Arc::clone(to);
        Arc::new(move |event| {
            to.put(match event {
                Event::Message(word) => Heard::Message(word.to_vec()),
                Event::Nudge => Heard::Nudge,
            });
        })
    }

    fn put(&self, event: Heard) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if event == Heard::Nudge && inner.words.back() == Some(&Heard::Nudge) {
            return;
        }
        inner.words.push_back(event);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn take(&self) -> Option<Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).words.pop_front()
    }

    /// The next word; of several who wait at once, only the last is woken.
    pub(crate) async fn next(&self) -> Heard {
        std::future::poll_fn(|cx| {
            let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match inner.words.pop_front() {
                Some(event) => Poll::Ready(event),
                None => {
                    inner.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}
