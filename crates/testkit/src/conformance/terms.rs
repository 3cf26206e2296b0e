//! Terms: bounded, ending by themselves, and believed no longer than they last.

use leasehold_core::{Claim, Ended, ErrorKind, Place};
use std::time::Duration;

use super::world::{World, answered};

/// A term outside the profile's bounds is refused; those on the bounds are taken.
pub async fn out_of_bounds_is_refused(w: &World) {
    let (low, high) = w.profile().term_bounds;
    let nano = Duration::from_nanos(1);
    for term in [Duration::ZERO, low.saturating_sub(nano), high + nano, Duration::MAX] {
        w.refused(&w.a, &Claim { term, ..w.claim("r") }, ErrorKind::Usage).await;
    }
    w.granted(&w.a, &Claim { term: low, ..w.claim("low") }).await;
    w.granted(&w.a, &Claim { term: high, ..w.claim("high") }).await;
}

/// A grant that is not renewed ends by itself, and the next claim gets in.
pub async fn a_grant_ends_by_itself(w: &World) {
    let held = Claim { term: w.short(), ..w.claim("r") };
    let first = w.granted(&w.a, &held).await;
    let next = w.claim("r");
    let grant = w.until_granted(&w.b, &next).await;
    assert!(grant.token > first.token);
    let queue = answered(w.b.inspect(&next.resource).await, "inspect");
    assert_eq!(queue.last_end, Some(Ended::Expired));
}

/// Belief in a grant ends before the store lets another in.
pub async fn belief_ends_before_another_gets_in(w: &World) {
    for _ in 0..3 {
        let held = Claim { term: w.short(), ..w.claim("r") };
        let believed = w.until_granted(&w.a, &held).await.until;
        let next = Claim { term: w.short(), place: Place::No, ..w.claim("r") };
        w.until_granted(&w.b, &next).await;
        assert!(w.now() >= believed, "another was let in {:?} early", believed.since(w.now()));
        w.leaves(&w.b, &next).await;
    }
}
