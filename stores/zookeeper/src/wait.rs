//! Waiting in the queue: one task a waiting seat, which watches one node.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::hall::{Hall, maybe};
use crate::look::{self, Seen, WaitFor};
use crate::seat::{Seat, Stage};
use crate::wire::{Op, Reply};

/// A watch is looked after at the latest after this time: it may have been lost with a server.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How long to wait after a look that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(200);

/// Sees to it that a waiting seat is granted when its turn comes, whether anybody asks or not.
pub(crate) fn start(hall: &Arc<Hall>, seat: &Arc<Seat>, wait_for: WaitFor) {
    if std::mem::replace(&mut seat.facts().is_watched, true) {
        return;
    }
    let (weak, seat) = (Arc::downgrade(hall), Arc::clone(seat));
    hall.runtime.spawn(async move {
        let mut wait_for = Some(wait_for);
        loop {
            if let Some(wait_for) = wait_for.take() {
                let Some(hall) = weak.upgrade() else { return };
                let watch = watch(&hall, &seat, wait_for).await;
                drop(hall);
                watch.wait().await;
            }
            let Some(hall) = weak.upgrade() else { return };
            let turn = seat.turn.lock().await;
            if !matches!(seat.facts().stage, Stage::Waiting(_)) || seat.facts().leaving {
                return;
            }
            match look::look(&hall, &seat, None).await {
                Ok(Seen::Waits(next)) => wait_for = Some(next),
                Ok(Seen::Settled) => {
                    drop(turn);
                    hall.stir(&seat);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a waiter could not look");
                    drop((turn, hall));
                    tokio::time::sleep(AFTER_FAILURE).await;
                }
            }
        }
    });
}

/// What a waiter waits for.
enum Watch {
    Word(oneshot::Receiver<()>),
    Time(Duration),
    /// It has happened.
    Over,
}

impl Watch {
    async fn wait(self) {
        match self {
            Watch::Over => {}
            Watch::Time(span) => tokio::time::sleep(span.min(LOOK_AGAIN)).await,
            Watch::Word(word) => {
                // Dropped is told as well: the connection was lost.
                let _ = tokio::time::timeout(LOOK_AGAIN, word).await;
            }
        }
    }
}

async fn watch(hall: &Hall, seat: &Seat, wait_for: WaitFor) -> Watch {
    let generation = seat.facts().generation;
    let (told, word) = oneshot::channel();
    let (op, listed) = match wait_for {
        WaitFor::Time(span) => return Watch::Time(span),
        WaitFor::Node(path) => (Op::Exists { path, watch: true }, None),
        WaitFor::Queue(listed) => {
            (Op::Children { path: seat.paths.queue.clone(), watch: true }, Some(listed))
        }
    };
    match (maybe(hall.wire.watch(generation, &op, told).answer().await.result), listed) {
        // The queue may have changed before it was watched.
        (Ok(Some(Reply::Children(mut names))), Some(listed)) => {
            names.sort_unstable();
            if names == listed { Watch::Word(word) } else { Watch::Over }
        }
        (Ok(Some(_)), _) => Watch::Word(word),
        (Ok(None), _) => Watch::Over,
        (Err(_), _) => Watch::Time(AFTER_FAILURE),
    }
}
