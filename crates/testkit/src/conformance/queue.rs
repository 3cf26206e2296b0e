//! The queue: its order, its places, and word of a hand-over.

use std::time::Duration;

use leasehold_core::{Admission, Claim, Cursor, Hint, Place, PlaceKept, PushedEnd, Renewed};

use super::world::{World, answered};

/// Waiters are served in the order of their coming, where the profile says so; all are served.
pub async fn waiters_are_served_in_order(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    let waiters: Vec<Claim> = (0..4).map(|_| w.claim("r")).collect();
    for (n, waiter) in waiters.iter().enumerate() {
        let store = if n % 2 == 0 { &w.b } else { &w.a };
        if let Some(waiting) = w.waits(store, waiter).await
            && w.profile().fair
        {
            let ahead = u32::try_from(n + 1).ok();
            assert!(waiting.ahead.is_none() || waiting.ahead == ahead, "{waiting:?}");
        }
    }
    w.leaves(&w.a, &held).await;
    let mut rest: Vec<(usize, Claim)> = waiters.into_iter().enumerate().collect();
    while !rest.is_empty() {
        let served = w.until_some("a waiter is served", async || next_served(w, &rest).await).await;
        if w.profile().fair {
            assert_eq!(served, 0, "somebody was passed");
        }
        let (n, claim) = rest.remove(served);
        w.leaves(asker(w, n), &claim).await;
    }
}

/// The client that may ask for the claim of this number: any where claims pass on by their id,
/// else the one that entered it.
fn asker(w: &World, n: usize) -> &std::sync::Arc<dyn leasehold_core::Store> {
    if n.is_multiple_of(2) && !w.profile().transferable { &w.b } else { &w.a }
}

/// Which of these has been granted.
async fn next_served(w: &World, rest: &[(usize, Claim)]) -> Option<usize> {
    for (at, (n, claim)) in rest.iter().enumerate().rev() {
        match answered(w.enter(asker(w, *n), claim).await, "enter") {
            Admission::Granted(_) => return Some(at),
            Admission::Gone(how) => panic!("a waiter is gone: {how}"),
            Admission::Waiting(_) | Admission::Busy(_) => {}
        }
    }
    None
}

/// A claim that does not queue passes nobody who waits.
pub async fn a_try_passes_no_waiter(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    let queued = w.waits(&w.b, &waiter).await.is_some();
    w.leaves(&w.a, &held).await;
    let attempt = Claim { place: Place::No, ..w.claim("r") };
    let answer = answered(w.enter(&w.a, &attempt).await, "enter");
    if queued && w.profile().fair {
        assert!(matches!(answer, Admission::Busy(_)), "{answer:?}");
        w.until_granted(&w.b, &waiter).await;
    } else if let Admission::Granted(_) = answer {
        w.leaves(&w.a, &attempt).await;
        w.until_granted(&w.b, &waiter).await;
    }
}

/// A waiter that says nothing more costs the queue at most its place term, where places are kept
/// by heartbeats.
pub async fn a_silent_waiter_is_passed(w: &World) {
    let (held, next) = (w.claim("r"), w.claim("r"));
    let place = Duration::from_secs(1);
    let silent = Claim { place: Place::Term(place), ..w.claim("r") };
    w.granted(&w.a, &held).await;
    let queued = w.waits(&w.b, &silent).await.is_some();
    w.waits(&w.a, &next).await;
    let by_heartbeat = matches!(w.profile().place, PlaceKept::Heartbeat { .. });
    if queued && !by_heartbeat {
        w.pass(place * 2);
        let answer = w.renew(&w.b, &silent.to_ref()).await;
        return assert!(matches!(answer, Renewed::Waiting(_)), "it lives: {answer:?}");
    }
    w.pass(place + place / 2);
    w.leaves(&w.a, &held).await;
    w.until_granted(&w.a, &next).await;
    let answer = w.renew(&w.b, &silent.to_ref()).await;
    assert!(matches!(answer, Renewed::Gone(_)), "{answer:?}");
}

/// A waiter that was granted but says nothing holds no longer than its term.
pub async fn a_silent_new_holder_is_passed(w: &World) {
    let (held, next) = (w.claim("r"), w.claim("r"));
    let silent = Claim { term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &held).await;
    w.waits(&w.b, &silent).await;
    w.waits(&w.a, &next).await;
    w.leaves(&w.a, &held).await;
    w.until_granted(&w.a, &next).await;
}

/// After a hand-over `changed` returns for the waiter, also when it is called only then.
pub async fn a_hand_over_is_told_to_who_asks_later(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    let Some(waiting) = w.waits(&w.b, &waiter).await else { return };
    w.leaves(&w.a, &held).await;
    let at_most = w.long();
    let hint = w.watch(&w.b, &held.resource, Cursor::default(), at_most).heard(w).await;
    let Hint::Granted(pushed) = hint else {
        w.until_granted(&w.b, &waiter).await;
        return;
    };
    assert_eq!(pushed.grant.claim, waiter.id);
    assert_eq!(pushed.ticket, waiting.ticket, "a pushed grant bears the ticket of the answer");
    match pushed.grant.until {
        PushedEnd::FirstTerm(span) => assert!(!span.is_zero() && span <= waiter.term),
        PushedEnd::At(end) => assert!(end <= w.now() + waiter.term),
    }
    let mut named = waiter.to_ref();
    named.token = Some(pushed.grant.token);
    let answer = w.renew(&w.b, &named).await;
    assert!(matches!(answer, Renewed::Alive { .. }), "a pushed grant is one: {answer:?}");
}

/// A waiter that already watches is told of a hand-over.
pub async fn a_hand_over_wakes_who_waits(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    if w.waits(&w.b, &waiter).await.is_none() {
        return;
    }
    let watch = w.watch(&w.b, &held.resource, Cursor::default(), w.long());
    w.pass(Duration::from_millis(20));
    w.leaves(&w.a, &held).await;
    watch.heard(w).await;
    w.until_granted(&w.b, &waiter).await;
}

/// `changed` returns after its time in any case.
pub async fn a_watch_ends_in_time(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    w.waits(&w.b, &waiter).await;
    let name = &held.resource;
    let mut since = Cursor::default();
    for _ in 0..3 {
        match w.watch(&w.b, name, since, Duration::from_millis(50)).heard(w).await {
            Hint::Moved(cursor) => {
                assert!(cursor >= since, "a cursor goes back");
                since = cursor;
            }
            Hint::Granted(pushed) => panic!("nothing was handed over: {pushed:?}"),
        }
    }
    w.watch(&w.a, &w.name("unused"), Cursor::default(), Duration::from_millis(50)).heard(w).await;
}

/// A waiting answer says when to look again, within the holder's term, and who holds.
pub async fn a_waiting_answer_says_when_to_look_again(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    let Some(waiting) = w.waits(&w.b, &w.claim("r")).await else { return };
    assert!(!waiting.recheck_in.is_zero() && waiting.recheck_in <= held.term);
    if let Some(holder) = waiting.holder {
        assert_eq!(holder.label, held.holder.label());
    }
}

/// The queue shows holders first and then waiters, each in order; looking changes nothing.
pub async fn inspect_shows_the_queue(w: &World) {
    let held = w.claim("r");
    let grant = w.granted(&w.a, &held).await;
    let waiters = [w.claim("r"), w.claim("r")];
    let mut queued = Vec::new();
    for waiter in &waiters {
        if let Some(waiting) = w.waits(&w.b, waiter).await {
            queued.push((waiter.id, waiting.ticket));
        }
    }
    for _ in 0..2 {
        let queue = answered(w.b.inspect(&held.resource).await, "inspect");
        assert_eq!(queue.kind, Some(held.mode.kind()));
        assert!(queue.last_token.is_none_or(|t| t == grant.token), "{queue:?}");
        let ids: Vec<_> = queue.entries.iter().map(|e| e.claim).collect();
        let expected: Vec<_> = std::iter::once(held.id).chain(queued.iter().map(|q| q.0)).collect();
        assert_eq!(ids, expected);
        assert_eq!(queue.entries[0].holder, held.holder);
        assert_eq!(queue.entries[0].mode, held.mode);
        assert_eq!(queue.entries[0].life, held.life);
    }
    w.leaves(&w.a, &held).await;
    w.until_granted(&w.b, &waiters[0]).await;
}
