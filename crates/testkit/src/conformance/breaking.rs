//! Breaking: marked, told, freed; the token rises.

use leasehold_core::{Broken, Claim, Ended, Place, Previous, QueueState, Renewed, Token, Written};
use std::time::Duration;

use super::world::{World, answered};

async fn break_(w: &World, claim: &Claim, expect: Option<Token>, now: bool) -> Broken {
    answered(w.b.break_(&claim.resource, expect, now).await, "break")
}

/// A marked holder is told at its next renewal and keeps others out until it leaves.
pub async fn a_marked_holder_is_told_and_keeps_others_out(w: &World) {
    let (held, next) = (w.claim("r"), w.claim("r"));
    let grant = w.granted(&w.a, &held).await;
    assert_eq!(break_(w, &held, None, false).await, Broken::Marked(vec![grant.token]));
    w.waits(&w.b, &next).await;
    let queue = answered(w.b.inspect(&held.resource).await, "inspect");
    let marked = |e: &leasehold_core::QueueEntry| {
        matches!(e.state, QueueState::Granted { broken: true, .. })
    };
    assert!(queue.holders().any(marked), "{queue:?}");
    let mut named = held.to_ref();
    named.token = Some(grant.token);
    for _ in 0..2 {
        let answer = w.renew(&w.a, &named).await;
        assert!(matches!(answer, Renewed::Gone(Ended::Broken)), "{answer:?}");
    }
    w.waits(&w.b, &next).await;
    answered(w.a.leave(&named).await, "leave");
    let after = w.until_granted(&w.b, &next).await;
    assert!(after.token > grant.token);
    assert_eq!(after.previous, Previous::Ended(Ended::Broken));
}

/// A marked holder that does not leave keeps others out only for the term it has.
pub async fn a_marked_holder_ends_with_its_term(w: &World) {
    let held = Claim { term: w.short(), ..w.claim("r") };
    let grant = w.granted(&w.a, &held).await;
    break_(w, &held, None, false).await;
    let mut named = held.to_ref();
    named.token = Some(grant.token);
    let next = Claim { place: Place::No, ..w.claim("r") };
    let after = w
        .until_some("a broken grant ends", async || {
            w.renew(&w.a, &named).await; // which does not lengthen it
            match answered(w.enter(&w.b, &next).await, "enter") {
                leasehold_core::Admission::Granted(grant) => Some(grant),
                _ => None,
            }
        })
        .await;
    assert!(after.token > grant.token);
    assert_eq!(after.previous, Previous::Ended(Ended::Broken));
}

/// With `now` it is free at once.
pub async fn now_means_at_once(w: &World) {
    let (held, next) = (w.claim("r"), w.claim("r"));
    let grant = w.granted(&w.a, &held).await;
    w.waits(&w.b, &next).await;
    assert_eq!(break_(w, &held, Some(grant.token), true).await, Broken::Marked(vec![grant.token]));
    let after = w.until_granted(&w.b, &next).await;
    assert!(after.token > grant.token);
    assert_eq!(after.previous, Previous::Ended(Ended::Broken));
    let answer = w.renew(&w.a, &held.to_ref()).await;
    assert!(matches!(answer, Renewed::Gone(Ended::Broken)), "{answer:?}");
}

/// Only the grant with the expected token is marked; the answer says who holds instead.
pub async fn another_token_is_left_alone(w: &World) {
    let held = w.claim("r");
    let grant = w.granted(&w.a, &held).await;
    let other = Token::new(grant.token.get() + 1);
    let broken = break_(w, &held, other, true).await;
    assert_eq!(broken, Broken::Nothing { held: vec![grant.token] });
    let answer = w.renew(&w.a, &held.to_ref()).await;
    assert!(matches!(answer, Renewed::Granted(_)), "{answer:?}");
}

/// Where nobody holds there is nothing to break.
pub async fn nothing_is_nothing(w: &World) {
    let broken = break_(w, &w.claim("r"), None, true).await;
    assert_eq!(broken, Broken::Nothing { held: Vec::new() });
}

/// A marked holder writes no record.
pub async fn a_marked_holder_writes_nothing(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    break_(w, &held, None, false).await;
    let keep = Duration::from_secs(60);
    let written = answered(w.a.write(&held.to_ref(), b"x", keep).await, "write");
    assert_eq!(written, Written::Gone(Ended::Broken));
    assert_eq!(answered(w.a.read(&held.resource).await, "read"), None);
}

/// A holder that re-enters what was marked does not get in.
pub async fn a_marked_grant_is_not_reentered(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    break_(w, &held, None, false).await;
    w.waits(&w.a, &Claim { place: Place::No, ..w.again(&held) }).await;
}
