//! What has been said on a channel and was not heard yet.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// How many words wait for one who listens.
const WORDS_MAX: usize = 64;

/// What one who listens hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
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
    words: VecDeque<Event>,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(crate) fn put(&self, event: Event) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if event == Event::Nudge && inner.words.back() == Some(&Event::Nudge) {
            return;
        }
        if inner.words.len() == WORDS_MAX {
            inner.words.clear();
            inner.words.push_back(Event::Nudge);
        } else {
            inner.words.push_back(event);
        }
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    #[cfg(test)]
    pub(crate) fn take(&self) -> Option<Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).words.pop_front()
    }

    /// The next word; of several who wait at once, only the last is woken.
    pub(crate) async fn next(&self) -> Event {
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn words_come_in_order_and_too_many_become_a_nudge() {
        let mailbox = Mailbox::default();
        assert!(block_on(poll_once(mailbox.next())).is_none());
        mailbox.put(Event::Message(vec![1]));
        mailbox.put(Event::Nudge);
        mailbox.put(Event::Nudge);
        assert_eq!(block_on(mailbox.next()), Event::Message(vec![1]));
        assert_eq!(mailbox.take(), Some(Event::Nudge));
        assert_eq!(mailbox.take(), None);
        for word in 0..=u8::try_from(WORDS_MAX).unwrap() {
            mailbox.put(Event::Message(vec![word]));
        }
        assert_eq!(mailbox.take(), Some(Event::Nudge));
        assert_eq!(mailbox.take(), None);
    }
}
