//! After an unclean end: how a grant tells it, and how it is held back.

use leasehold_core::{Claim, Ended, Place, Previous};
use std::time::Duration;

use super::world::{World, answered};

/// A careful claim is held back after an unclean end, for the time it asks for, and no longer.
pub async fn a_careful_claim_is_held_back(w: &World) {
    let lost = Claim { term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &lost).await;
    w.pass(lost.term);
    w.until_gone(&w.a, &lost).await;
    let since = w.now();
    let back = Duration::from_secs(3);
    let careful = Claim { after_loss: back, ..w.claim("r") };
    w.waits(&w.b, &Claim { place: Place::No, ..careful.clone() }).await;
    let careful = w.again(&careful);
    let grant = w.until_granted(&w.b, &careful).await;
    assert!(w.now() > since + back / 2, "it was not held back");
    assert_eq!(grant.previous, Previous::Ended(Ended::Expired));
}

/// Nobody passes a careful claim that is held back, where the store is fair.
pub async fn nobody_passes_it(w: &World) {
    let lost = Claim { term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &lost).await;
    w.pass(lost.term);
    w.until_gone(&w.a, &lost).await;
    let careful = Claim { after_loss: w.long(), ..w.claim("r") };
    let queued = w.waits(&w.b, &careful).await.is_some();
    let other = w.claim("r");
    if queued && w.profile().fair {
        w.waits(&w.a, &other).await;
    } else {
        w.granted(&w.a, &other).await;
    }
}

/// After a clean release, and on a name never held, nobody is held back.
pub async fn a_clean_end_holds_nobody_back(w: &World) {
    let careful = || Claim { after_loss: w.long(), ..w.claim("r") };
    let first = careful();
    w.granted(&w.a, &first).await;
    w.leaves(&w.a, &first).await;
    let second = w.granted(&w.b, &careful()).await;
    assert_eq!(second.previous, Previous::Ended(Ended::Released));
}

/// A grant says how the one before it ended; a waiter that withdrew is no such end.
pub async fn a_grant_tells_how_the_one_before_ended(w: &World) {
    let (held, waiter, next) = (w.claim("r"), w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    w.leaves(&w.a, &held).await;
    let second = Claim { term: w.short(), ..w.claim("r") };
    let grant = w.granted(&w.a, &second).await;
    assert_eq!(grant.previous, Previous::Ended(Ended::Released));
    if w.waits(&w.b, &waiter).await.is_some() {
        w.leaves(&w.b, &waiter).await;
    }
    let grant = w.until_granted(&w.b, &next).await;
    assert_eq!(grant.previous, Previous::Ended(Ended::Expired));
    let queue = answered(w.a.inspect(&held.resource).await, "inspect");
    assert_eq!(queue.last_end, Some(Ended::Expired));
}
