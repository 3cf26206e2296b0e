//! What the holder of a session lock has.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::{ANSWER_WITHIN, clock};

/// A session lock, held until it is released, dropped or lost.
///
/// Dropping it closes its connection, and so frees the lock; [`Guard::release`] waits for that and
/// says how it went.
#[must_use = "a lock is freed when its guard is dropped"]
pub struct Guard {
    name: String,
    belief: Arc<Belief>,
    lost: watch::Receiver<Option<Lost>>,
    release: Option<oneshot::Sender<Asked>>,
}

/// Where the answer to a release goes.
pub(super) type Asked = oneshot::Sender<Release>;

/// Why a session lock is not held any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// Its connection was closed: by the server, an operator, or the network.
    #[error("its connection ended: {why}")]
    Closed {
        /// What was seen of that.
        why: String,
    },
    /// The server has not answered for so long that it may have ended the session.
    #[error("the server was silent for almost a term")]
    Silent,
    /// The server says that the session does not hold it.
    #[error("the server does not know it any more")]
    Unknown,
}

/// How a release went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Release {
    /// It was held to the end, and is free now.
    Released,
    /// It had been lost before.
    AlreadyLost(Lost),
    /// The server did not say. Its connection is closed: the lock ends when the server sees that,
    /// a term later at most.
    Unknown,
}

impl Guard {
    pub(super) fn new(
        name: String,
        belief: Arc<Belief>,
        lost: watch::Receiver<Option<Lost>>,
        release: oneshot::Sender<Asked>,
    ) -> Guard {
        Guard { name, belief, lost, release: Some(release) }
    }

    /// What was locked.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it may be believed to be held at this moment. Reads a clock, and asks nobody.
    pub fn is_held(&self) -> bool {
        self.lost.borrow().is_none() && self.lost.has_changed().is_ok() && !self.belief.is_over()
    }

    /// Waits until it is lost, and tells why.
    ///
    /// Cancel safety: it may be dropped and called again, by any number at once.
    pub async fn lost(&self) -> Lost {
        let mut lost = self.lost.clone();
        // Fails if the runtime that watched it is gone, and the connection with it.
        let told = lost.wait_for(Option::is_some).await;
        told.ok().and_then(|lost| lost.clone()).unwrap_or_else(ended)
    }

    /// Does some work, and drops it half-way if the lock is lost.
    ///
    /// # Errors
    ///
    /// Why it was lost; what the work has done by then is done.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        tokio::select! {
            biased;
            lost = self.lost() => Err(lost),
            done = work => Ok(done),
        }
    }

    /// Frees it, closes its connection, and tells how it went.
    ///
    /// Cancel safety: dropped half-way, it goes on in the background.
    pub async fn release(mut self) -> Release {
        let (asked, answer) = oneshot::channel();
        let sent = self.release.take().map(|release| release.send(asked));
        if !matches!(sent, Some(Ok(()))) {
            return Release::AlreadyLost(self.lost().await);
        }
        match tokio::time::timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(release)) => release,
            // Its watcher ended before it saw the question.
            Ok(Err(_)) => Release::AlreadyLost(self.lost().await),
            Err(_) => Release::Unknown,
        }
    }
}

fn ended() -> Lost {
    Lost::Closed { why: "the runtime that watched it has ended".to_owned() }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Guard");
        debug.field("name", &self.name).field("held", &self.is_held()).finish()
    }
}

/// Until when the lock may be believed to be held.
#[derive(Debug)]
pub(super) struct Belief {
    /// How long an answer vouches for, from when its question was sent.
    vouched: Duration,
    /// By our clock, in nanoseconds.
    until: AtomicU64,
}

impl Belief {
    /// Of a lock that was seen to be held by the answer to a question sent at this time.
    pub(super) fn new(term: Duration, sent: Duration) -> Belief {
        // A tenth for the drift of the two clocks, a fiftieth as a margin.
        let vouched = term - term / 10 - term / 50 - Duration::from_millis(2);
        let belief = Belief { vouched, until: AtomicU64::new(0) };
        belief.answered(sent);
        belief
    }

    /// A question that was sent at this time was answered.
    pub(super) fn answered(&self, sent: Duration) {
        let until = u64::try_from((sent + self.vouched).as_nanos()).unwrap_or(u64::MAX);
        self.until.fetch_max(until, Ordering::SeqCst);
    }

    /// How long it lasts from now on.
    pub(super) fn left(&self) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::SeqCst)).saturating_sub(clock::now())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belief_counts_from_the_question_and_ends_before_the_term() {
        let term = Duration::from_secs(10);
        let sent = clock::now();
        let belief = Belief::new(term, sent);
        assert!(belief.left() <= term - term / 10);
        belief.answered(sent - Duration::from_secs(5));
        assert!(belief.left() > term / 2, "an older answer takes nothing away");
        assert!(Belief::new(term, sent - term).is_over());
    }
}
