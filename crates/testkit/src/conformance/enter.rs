//! Entering: granted, busy, found again, gone, refused.

use leasehold_core::{Claim, Ended, ErrorKind, Mode, Place, Previous};

use super::world::{World, answered};

/// A free resource is granted at once, with a token and an end that lies ahead, within the term.
pub async fn a_free_resource_is_granted(w: &World) {
    let claim = w.claim("r");
    let before = w.now();
    let grant = w.granted(&w.a, &claim).await;
    assert!(grant.until > w.now(), "belief has not ended yet");
    assert!(grant.until <= w.now() + claim.term, "belief is within the term");
    assert!(grant.until > before + claim.term / 2, "most of the term is believed");
    let slots = u32::from(matches!(claim.mode, Mode::Permits { .. }));
    assert_eq!(grant.slots.as_slice(), (0..slots).collect::<Vec<_>>());
}

/// Without a place a claim is busy and leaves nothing behind.
pub async fn without_a_place_it_is_busy_and_leaves_nothing(w: &World) {
    let held = w.claim("r");
    w.granted(&w.a, &held).await;
    let attempt = Claim { place: Place::No, ..w.claim("r") };
    assert_eq!(w.waits(&w.b, &attempt).await, None);
    let queue = answered(w.b.inspect(&held.resource).await, "inspect");
    let there: Vec<_> = queue.entries.iter().map(|e| e.claim).collect();
    assert_eq!(there, [held.id]);
    w.leaves(&w.a, &held).await;
    w.granted(&w.b, &attempt).await;
}

/// A busy answer names the holder by its label where the store knows it.
pub async fn a_busy_answer_names_the_holder(w: &World) {
    let held = w.claim("r");
    let grant = w.granted(&w.a, &held).await;
    let attempt = Claim { place: Place::No, ..w.claim("r") };
    let answer = answered(w.enter(&w.b, &attempt).await, "enter");
    let leasehold_core::Admission::Busy(busy) = answer else { panic!("not busy: {answer:?}") };
    if let Some(holder) = busy.holder {
        assert_eq!(holder.label, held.holder.label());
        assert!(holder.token.is_none_or(|t| t == grant.token));
    }
    assert!(busy.free_in.is_none_or(|span| span <= held.term));
}

/// Entering the same claim again finds its grant, from either client.
pub async fn entering_again_finds_the_grant(w: &World) {
    let claim = w.claim("r");
    let first = w.granted(&w.a, &claim).await;
    let second = w.granted(&w.a, &claim).await;
    assert_eq!((first.token, first.slots), (second.token, second.slots));
    assert!(second.until <= first.until.max(w.now() + claim.term));
    w.leaves(&w.a, &claim).await;
    w.granted(&w.b, &w.claim("r")).await; // one leave was enough: it was one claim
}

/// Entering the same claim again does not lengthen its term.
pub async fn entering_again_does_not_renew(w: &World) {
    let claim = Claim { term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &claim).await;
    let how = w
        .until_some("a claim ends though it is entered again and again", async || {
            match answered(w.enter(&w.a, &claim).await, "enter") {
                leasehold_core::Admission::Gone(how) => Some(how),
                _ => None,
            }
        })
        .await;
    assert_eq!(how, Ended::Expired);
}

/// Entering the same claim again finds its place in the queue, under the same ticket.
pub async fn entering_again_finds_the_place(w: &World) {
    w.granted(&w.a, &w.claim("r")).await;
    let waiter = w.claim("r");
    let first = w.waits(&w.b, &waiter).await;
    let second = w.waits(&w.b, &waiter).await;
    assert_eq!(first.map(|f| f.ticket), second.map(|s| s.ticket));
    let queue = answered(w.a.inspect(&waiter.resource).await, "inspect");
    assert_eq!(queue.waiters().count(), usize::from(w.profile().queues));
}

/// A claim that has left is gone, and entering it again brings nothing back.
pub async fn what_has_left_is_gone(w: &World) {
    let claim = w.claim("r");
    w.granted(&w.a, &claim).await;
    w.leaves(&w.a, &claim).await;
    assert_eq!(w.gone(&w.a, &claim).await, Ended::Released);
    w.granted(&w.b, &w.claim("r")).await;
}

/// A claim whose term ran out is gone, though nobody else came.
pub async fn what_has_run_out_is_gone(w: &World) {
    let claim = Claim { term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &claim).await;
    w.pass(claim.term);
    assert_eq!(w.until_gone(&w.a, &claim).await, Ended::Expired);
    assert_eq!(w.gone(&w.a, &claim).await, Ended::Expired);
}

/// Another kind than that of the live claims is refused; once they are gone it is not.
pub async fn another_kind_is_refused(w: &World) {
    let permit = Mode::Permits { count: 1, limit: 2 };
    let lock = w.claim("r");
    w.granted(&w.a, &lock).await;
    let other = Claim { mode: permit, ..w.claim("r") };
    if !w.supports(permit) {
        return w.refused(&w.b, &other, ErrorKind::Unsupported).await;
    }
    w.refused(&w.b, &other, ErrorKind::Usage).await;
    w.leaves(&w.a, &lock).await;
    w.granted(&w.b, &other).await;
    w.refused(&w.a, &w.claim("r"), ErrorKind::Usage).await;
}

/// Another limit than that of the live claims is refused.
pub async fn another_limit_is_refused(w: &World) {
    let of = |limit| Mode::Permits { count: 1, limit };
    let first = Claim { mode: of(2), ..w.claim("r") };
    if !w.supports(of(2)) {
        return w.refused(&w.a, &first, ErrorKind::Unsupported).await;
    }
    w.granted(&w.a, &first).await;
    w.refused(&w.b, &Claim { mode: of(3), ..w.claim("r") }, ErrorKind::Usage).await;
    w.granted(&w.b, &Claim { mode: of(2), ..w.claim("r") }).await;
}

/// Permits that make no sense are refused.
pub async fn impossible_permits_are_refused(w: &World) {
    let limit_max = Mode::LIMIT_MAX;
    for (count, limit) in [(0, 1), (2, 1), (0, 0), (1, limit_max + 1)] {
        let mode = Mode::Permits { count, limit };
        let kind = if w.supports(mode) { ErrorKind::Usage } else { ErrorKind::Unsupported };
        w.refused(&w.a, &Claim { mode, ..w.claim("r") }, kind).await;
    }
}

/// The first grant of a name says that it is the first.
pub async fn the_first_grant_says_so(w: &World) {
    let expected = if w.reads_first() { Previous::Ended(Ended::Released) } else { Previous::First };
    assert_eq!(w.granted(&w.a, &w.claim("r")).await.previous, expected);
}
