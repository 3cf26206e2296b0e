//! Waiting for word, of a claim or of a resource.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, ClaimId, Cursor, Hint, Pushed, PushedEnd, ResourceName, Ticket,
};
use tokio::sync::Notify;

use crate::enter::told;
use crate::hall::{Hall, Known};
use crate::seat::{Seat, Stage};

pub(crate) async fn changed(
    hall: &Arc<Hall>,
    resource: &ResourceName,
    claim: Option<ClaimId>,
    since: Cursor,
    at_most: Duration,
) -> Hint {
    if let Some(id) = claim
        && let Known::Sits(seat) = hall.find(id)
    {
        let hint = word(hall, &seat.moved, || seat.latest(), since, at_most).await;
        return pushed(hall, &seat, id).unwrap_or(hint);
    }
    let topic = hall.topic(resource);
    word(hall, &topic.moved, || topic.latest(), since, at_most).await
}

/// A grant that its waiter has not heard of, once: what the look showed that granted it is believed
/// from the moment at which that was asked, so nobody has to ask again.
fn pushed(hall: &Hall, seat: &Seat, id: ClaimId) -> Option<Hint> {
    let is_news = {
        let mut facts = seat.facts();
        let granted = matches!(facts.stage, Stage::Granted(_)) && !facts.leaving;
        granted && id == seat.claim.id && !std::mem::replace(&mut facts.is_told, true)
    };
    if !is_news {
        return None;
    }
    match told(hall, seat, &Claim { id, ..seat.claim.clone() })? {
        Admission::Granted(grant) => {
            let ticket = Ticket(grant.token.get());
            Some(Hint::Granted(Pushed { grant: grant.map_until(PushedEnd::At), ticket }))
        }
        _ => None,
    }
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
