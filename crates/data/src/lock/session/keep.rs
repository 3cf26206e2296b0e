//! The watcher of one session lock: the one place that tells its loss.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use super::guard::{Asked, Belief, Guard, Lost, Release};
use super::wire::Wire;
use super::{ANSWER_WITHIN, clock, within};
use crate::lock::Result;

/// The longest sleep: a timer of the runtime stands still while the machine sleeps.
const STEP_MOST: Duration = Duration::from_secs(1);

/// A session that holds one lock.
pub(super) trait Session: Send + 'static {
    /// Asks the server whether it is there and the lock held.
    fn ask(&mut self) -> impl Future<Output = Result<bool>> + Send;

    /// Frees the lock; whether it was held.
    fn free(&mut self) -> impl Future<Output = Result<bool>> + Send;

    /// Says goodbye.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// Watches over a lock that was seen to be held by the answer to a question sent at this time.
pub(super) fn start<S: Session>(
    name: String,
    session: S,
    wire: Wire,
    term: Duration,
    sent: Duration,
) -> Guard {
    let belief = Arc::new(Belief::new(term, sent));
    let (lost, seen) = watch::channel(None);
    let (release, asked) = oneshot::channel();
    let watcher = Watcher { session, wire, belief: Arc::clone(&belief), asked, waiting: None };
    tokio::spawn(watcher.run(lost, term / 4));
    Guard::new(name, belief, seen, release)
}

struct Watcher<S> {
    session: S,
    wire: Wire,
    belief: Arc<Belief>,
    asked: oneshot::Receiver<Asked>,
    /// Who waits for the release.
    waiting: Option<Asked>,
}

/// How a watch ends.
enum End {
    Lost(Lost),
    /// The guard was dropped, or its release is asked for.
    Given,
}

impl<S: Session> Watcher<S> {
    async fn run(mut self, lost: watch::Sender<Option<Lost>>, every: Duration) {
        let end = self.watch(every).await;
        if let End::Lost(why) = end {
            lost.send_replace(Some(why.clone()));
            self.answer(Release::AlreadyLost(why));
            // Dropped without a goodbye: nobody may be there to take it.
            return;
        }
        if self.waiting.is_some() {
            let release = self.free().await;
            if let Release::AlreadyLost(why) = &release {
                lost.send_replace(Some(why.clone()));
            }
            self.answer(release);
        }
        let Watcher { session, wire, .. } = self;
        // A goodbye goes out on the wire, which must not be dropped before.
        let _ = tokio::time::timeout(ANSWER_WITHIN, session.close()).await;
        wire.close().await;
    }

    async fn watch(&mut self, every: Duration) -> End {
        let mut asked_at = clock::now();
        loop {
            let left = self.belief.left();
            if left.is_zero() {
                return End::Lost(Lost::Silent);
            }
            let to_ask = (asked_at + every).saturating_sub(clock::now());
            if to_ask.is_zero() {
                asked_at = clock::now();
                match self.ask(asked_at).await {
                    Some(end) => return end,
                    None => continue,
                }
            }
            tokio::select! {
                biased;
                why = self.wire.ended() => return End::Lost(Lost::Closed { why }),
                asked = &mut self.asked => {
                    self.waiting = asked.ok();
                    return End::Given;
                }
                () = sleep(left.min(to_ask).min(STEP_MOST)) => {}
            }
        }
    }

    /// Asks once. Belief may end before the answer comes, and the guard be given up.
    async fn ask(&mut self, sent: Duration) -> Option<End> {
        let Watcher { session, wire, belief, asked, waiting } = self;
        let mut answer = std::pin::pin!(session.ask());
        loop {
            let left = belief.left();
            if left.is_zero() {
                return Some(End::Lost(Lost::Silent));
            }
            tokio::select! {
                biased;
                why = wire.ended() => return Some(End::Lost(Lost::Closed { why })),
                told = &mut *asked, if waiting.is_none() => match told {
                    // Freed when this is answered: a statement at a time.
                    Ok(asked) => *waiting = Some(asked),
                    Err(_) => return Some(End::Given),
                },
                answer = &mut answer => return match answer {
                    Ok(true) => {
                        belief.answered(sent);
                        waiting.is_some().then_some(End::Given)
                    }
                    Ok(false) => Some(End::Lost(Lost::Unknown)),
                    Err(error) => Some(End::Lost(Lost::Closed { why: shown(&error) })),
                },
                () = sleep(left.min(STEP_MOST)) => {}
            }
        }
    }

    async fn free(&mut self) -> Release {
        let Watcher { session, wire, .. } = self;
        tokio::select! {
            biased;
            freed = within(ANSWER_WITHIN, session.free()) => match freed {
                Ok(true) => Release::Released,
                Ok(false) => Release::AlreadyLost(Lost::Unknown),
                Err(_) => Release::Unknown,
            },
            _ = wire.ended() => Release::Unknown,
        }
    }

    fn answer(&mut self, release: Release) {
        let waiting = self.waiting.take().or_else(|| self.asked.try_recv().ok());
        if let Some(asked) = waiting {
            // Whoever asked may have gone.
            let _ = asked.send(release);
        }
    }
}

/// An error with what the driver said.
fn shown(error: &crate::lock::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
