//! Renewal: of grants and places, alone, in order; never creating, never reviving.

use leasehold_core::{Claim, Ended, Life, Place, QueueState, Renewed, Token};
use std::time::Duration;

use super::world::{World, answered};

/// A renewal of a claim that never entered creates nothing.
pub async fn it_never_creates(w: &World) {
    let claim = w.claim("r");
    let answer = w.renew(&w.a, &claim.to_ref()).await;
    assert!(matches!(answer, Renewed::Gone(_)), "{answer:?}");
    let queue = answered(w.a.inspect(&claim.resource).await, "inspect");
    assert!(queue.entries.is_empty());
    w.granted(&w.b, &w.claim("r")).await;
}

/// A renewal of what has run out revives nothing, though nobody has claimed since.
pub async fn it_never_revives(w: &World) {
    let claim = Claim { term: w.short(), ..w.claim("r") };
    let grant = w.granted(&w.a, &claim).await;
    w.pass(claim.term + claim.term / 2);
    let mut named = claim.to_ref();
    named.token = Some(grant.token);
    let answer = w.renew(&w.a, &named).await;
    assert!(matches!(answer, Renewed::Gone(Ended::Expired)), "{answer:?}");
    let again = w.renew(&w.a, &named).await;
    assert!(matches!(again, Renewed::Gone(_)), "{again:?}");
    w.granted(&w.b, &w.claim("r")).await;
}

/// A renewal of what was released revives nothing.
pub async fn a_late_renewal_after_a_leave_is_gone(w: &World) {
    let claim = w.claim("r");
    w.granted(&w.a, &claim).await;
    w.leaves(&w.a, &claim).await;
    let answer = w.renew(&w.a, &claim.to_ref()).await;
    assert!(matches!(answer, Renewed::Gone(Ended::Released)), "{answer:?}");
    w.granted(&w.b, &w.claim("r")).await;
}

/// A renewed grant lasts its term, perhaps a new one, from the renewal.
pub async fn it_lasts_its_new_term_from_now(w: &World) {
    let claim = Claim { term: w.short() * 4, ..w.claim("r") };
    let grant = w.granted(&w.a, &claim).await;
    let mut named = claim.to_ref();
    named.token = Some(grant.token);
    named.term = w.long();
    let before = w.now();
    let answer = w.renew(&w.a, &named).await;
    let Renewed::Alive { until } = answer else { panic!("not alive: {answer:?}") };
    assert!(until > grant.until && until <= w.now() + w.long());
    assert!(until > before + w.long() / 2);
    w.pass(claim.term + claim.term / 2);
    let still = w.renew(&w.a, &named).await;
    assert!(matches!(still, Renewed::Alive { .. }), "past its first term: {still:?}");
}

/// A renewal with a shorter term takes nothing away.
pub async fn it_never_shortens(w: &World) {
    let claim = w.claim("r");
    let grant = w.granted(&w.a, &claim).await;
    let mut named = claim.to_ref();
    named.token = Some(grant.token);
    named.term = w.short();
    let answer = w.renew(&w.a, &named).await;
    let Renewed::Alive { until } = answer else { panic!("not alive: {answer:?}") };
    assert!(until > w.now() + w.short(), "it had more than that");
    w.pass(w.short() * 2);
    let still = w.renew(&w.a, &named).await;
    assert!(matches!(still, Renewed::Alive { .. }), "{still:?}");
}

/// Without a token, a renewal of a grant says which one it is.
pub async fn without_a_token_it_tells_the_grant(w: &World) {
    let claim = w.claim("r");
    let grant = w.granted(&w.a, &claim).await;
    let answer = w.renew(&w.a, &claim.to_ref()).await;
    let Renewed::Granted(told) = answer else { panic!("not granted: {answer:?}") };
    assert_eq!((told.claim, told.token, told.slots), (claim.id, grant.token, grant.slots));
}

/// A renewal that names another token renews nothing.
pub async fn it_names_the_grant(w: &World) {
    let claim = Claim { term: w.short(), ..w.claim("r") };
    let grant = w.granted(&w.a, &claim).await;
    let mut named = claim.to_ref();
    named.token = Token::new(grant.token.get() + 1);
    let answer = w.renew(&w.a, &named).await;
    assert!(matches!(answer, Renewed::Gone(_)), "{answer:?}");
    let next = Claim { place: Place::No, ..w.claim("r") };
    w.until_granted(&w.b, &next).await;
}

/// A waiting claim keeps its place beyond its place term as long as it says that it lives.
pub async fn a_waiter_keeps_its_place(w: &World) {
    w.granted(&w.a, &w.claim("r")).await;
    let place = Duration::from_secs(2);
    let waiter = Claim { place: Place::Term(place), ..w.claim("r") };
    let Some(waiting) = w.waits(&w.b, &waiter).await else { return };
    let end = w.now() + place * 2;
    while w.now() < end {
        let answer = w.renew(&w.b, &waiter.to_ref()).await;
        let Renewed::Waiting(still) = answer else { panic!("not waiting: {answer:?}") };
        assert_eq!(still.ticket, waiting.ticket);
        w.pass(place / 8);
    }
}

/// A waiting claim that was granted meanwhile is told so by its renewal.
pub async fn a_waiter_is_told_of_its_grant(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    let first = w.granted(&w.a, &held).await;
    if w.waits(&w.b, &waiter).await.is_none() {
        w.leaves(&w.a, &held).await;
        assert!(w.granted(&w.b, &waiter).await.token > first.token);
        return;
    }
    w.leaves(&w.a, &held).await;
    let grant = w
        .until_some("a renewal tells of the grant", async || {
            match w.renew(&w.b, &waiter.to_ref()).await {
                Renewed::Granted(grant) => Some(grant),
                Renewed::Waiting(_) => None,
                other => panic!("{other:?}"),
            }
        })
        .await;
    assert_eq!(grant.claim, waiter.id);
    assert!(grant.token > first.token);
    let mut named = waiter.to_ref();
    named.token = Some(grant.token);
    w.renew(&w.b, &named).await;
    w.until_some("the whole term is granted", async || {
        let queue = answered(w.a.inspect(&waiter.resource).await, "inspect");
        let left = queue.holders().find_map(|e| match e.state {
            QueueState::Granted { left, .. } if e.claim == waiter.id => Some(left),
            _ => None,
        });
        left.filter(|left| *left > waiter.term / 2)
    })
    .await;
}

/// Each claim of a batch is answered alone, in order.
pub async fn each_is_answered_alone_and_in_order(w: &World) {
    let (held, waiter, left, never) = (w.claim("r"), w.claim("r"), w.claim("r"), w.claim("r"));
    w.granted(&w.a, &left).await;
    w.leaves(&w.a, &left).await;
    let grant = w.granted(&w.a, &held).await;
    let queued = w.waits(&w.a, &waiter).await.is_some();
    let mut named = held.to_ref();
    named.token = Some(grant.token);
    let batch = [never.to_ref(), named.clone(), left.to_ref(), waiter.to_ref(), named];
    let answers = w.a.renew(&batch).await;
    assert_eq!(answers.len(), batch.len());
    assert!(matches!(answers[0], Renewed::Gone(_)), "{answers:?}");
    assert!(matches!(answers[1], Renewed::Alive { .. }), "{answers:?}");
    assert!(matches!(answers[2], Renewed::Gone(Ended::Released)), "{answers:?}");
    match &answers[3] {
        Renewed::Waiting(_) => assert!(queued, "{answers:?}"),
        Renewed::Gone(_) => assert!(!queued, "{answers:?}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(answers[4], Renewed::Alive { .. }), "{answers:?}");
}

/// A batch of nothing is answered by nothing.
pub async fn an_empty_batch_is_empty(w: &World) {
    assert!(w.a.renew(&[]).await.is_empty());
}

/// A renewal may change the life of a claim.
pub async fn it_may_change_the_life(w: &World) {
    if !w.profile().transferable {
        return assert_eq!(w.claim("r").life, Life::Process, "only processes hold here");
    }
    let claim = Claim { life: Life::Process, ..w.claim("r") };
    let grant = w.granted(&w.a, &claim).await;
    let mut named = claim.to_ref();
    named.token = Some(grant.token);
    named.life = Life::Term;
    let answer = w.renew(&w.a, &named).await;
    assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
    let queue = answered(w.a.inspect(&claim.resource).await, "inspect");
    assert!(queue.holders().all(|e| e.life == Life::Term), "{queue:?}");
}
