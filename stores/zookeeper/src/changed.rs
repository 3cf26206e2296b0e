//! Waiting for word, of a claim or of a resource.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Cursor, Hint, ResourceName};
use tokio::sync::Notify;

use crate::hall::{Hall, Known};

pub(crate) async fn changed(
    hall: &Arc<Hall>,
    resource: &ResourceName,
    claim: Option<ClaimId>,
    since: Cursor,
    at_most: Duration,
) -> Hint {
    if let Some(Known::Sits(seat)) = claim.map(|id| hall.find(id)) {
        return word(hall, &seat.moved, || seat.latest(), since, at_most).await;
    }
    let topic = hall.topic(resource);
    word(hall, &topic.moved, || topic.latest(), since, at_most).await
}

async fn word(
    hall: &Hall,
    moved: &Notify,
    latest: impl Fn() -> u64,
    since: Cursor,
    at_most: Duration,
) -> Hint {
    // The timer belongs to the store's thread, wherever this is polled.
    let timer = {
        let _runtime = hall.runtime.enter();
        tokio::time::sleep(at_most)
    };
    let wait = async {
        loop {
            let notified = moved.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let at = latest();
            if at > since.0 {
                return Hint::Moved(Cursor(at));
            }
            notified.await;
        }
    };
    tokio::select! {
        hint = wait => hint,
        () = timer => Hint::Moved(since.max(Cursor(latest()))),
    }
}

pub(crate) async fn disturbed(hall: &Hall, since: Cursor) -> Cursor {
    loop {
        let notified = hall.disturbance.notified();
        tokio::pin!(notified);
        notified.as_mut().enable();
        let at = hall.disturbed_at();
        if at > since.0 {
            return Cursor(at);
        }
        notified.await;
    }
}
