//! Re-entry: by the same holder, with the same token, ending with the last claim.

use leasehold_core::{
    Admission, Claim, ErrorKind, Holder, HolderId, Mode, Place, Reentry, Renewed,
};

use super::world::{World, answered};

/// The holder of a grant enters again at once, from its own client, with the same token.
pub async fn it_shares_the_token(w: &World) {
    let outer = w.claim("r");
    let inner = w.again(&outer);
    let first = w.granted(&w.a, &outer).await;
    let second = w.granted(&w.a, &inner).await;
    assert_eq!((first.token, first.slots), (second.token, second.slots));
}

/// From another client it enters where the store counts; elsewhere it does not get in.
pub async fn another_client_enters_where_the_store_counts(w: &World) {
    let outer = w.claim("r");
    let inner = Claim { place: Place::No, ..w.again(&outer) };
    let first = w.granted(&w.a, &outer).await;
    match (w.profile().reentry, w.enter(&w.b, &inner).await) {
        (Reentry::Store, Ok(Admission::Granted(second))) => assert_eq!(first.token, second.token),
        (Reentry::Client, Ok(Admission::Busy(_))) => {}
        (Reentry::Client, Err(error)) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        (reentry, answer) => panic!("re-entry is counted by the {reentry:?}: {answer:?}"),
    }
}

/// The last claim of a re-entered grant frees it, an inner one does not, in either order.
pub async fn the_last_claim_frees(w: &World) {
    for outer_first in [false, true] {
        let outer = w.claim("r");
        let inner = w.again(&outer);
        let grant = w.granted(&w.a, &outer).await;
        w.granted(&w.a, &inner).await;
        let (first, last) = if outer_first { (&outer, &inner) } else { (&inner, &outer) };
        w.leaves(&w.a, first).await;
        w.waits(&w.b, &Claim { place: Place::No, ..w.claim("r") }).await;
        assert_eq!(w.granted(&w.a, last).await.token, grant.token);
        w.leaves(&w.a, last).await;
        let next = w.claim("r");
        assert!(w.granted(&w.b, &next).await.token > grant.token);
        w.leaves(&w.b, &next).await;
    }
}

/// An inner claim with a short term takes nothing from the outer one.
pub async fn an_inner_term_shortens_nothing(w: &World) {
    let outer = w.claim("r");
    let inner = Claim { term: w.short(), ..w.again(&outer) };
    let grant = w.granted(&w.a, &outer).await;
    w.granted(&w.a, &inner).await;
    w.pass(inner.term + inner.term / 2);
    w.until_gone(&w.a, &inner).await;
    let mut named = outer.to_ref();
    named.token = Some(grant.token);
    let answer = w.renew(&w.a, &named).await;
    assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
    w.waits(&w.b, &w.claim("r")).await;
}

/// The end of an outer term does not end an inner claim that has a longer one.
pub async fn an_outer_term_ends_alone(w: &World) {
    let outer = Claim { term: w.short(), ..w.claim("r") };
    let inner = Claim { term: w.long(), ..w.again(&outer) };
    let grant = w.granted(&w.a, &outer).await;
    w.granted(&w.a, &inner).await;
    w.pass(outer.term + outer.term / 2);
    w.until_gone(&w.a, &outer).await;
    assert_eq!(w.granted(&w.a, &inner).await.token, grant.token);
    w.waits(&w.b, &w.claim("r")).await;
}

/// A holder that re-enters does not stand behind those who wait for it.
pub async fn it_passes_those_who_wait(w: &World) {
    let (outer, waiter) = (w.claim("r"), w.claim("r"));
    let grant = w.granted(&w.a, &outer).await;
    w.waits(&w.b, &waiter).await;
    let inner = w.again(&outer);
    assert_eq!(w.granted(&w.a, &inner).await.token, grant.token);
    w.leaves(&w.a, &outer).await;
    w.waits(&w.b, &waiter).await;
    w.leaves(&w.a, &inner).await;
    w.until_granted(&w.b, &waiter).await;
}

/// A label never re-enters; only the holder's id does.
pub async fn a_label_does_not_reenter(w: &World) {
    let outer = w.claim("r");
    w.granted(&w.a, &outer).await;
    let other = HolderId::from_bits(outer.holder.id.bits() ^ 1);
    let namesake = Holder::new(other, outer.holder.label());
    w.waits(&w.a, &Claim { holder: namesake, place: Place::No, ..w.claim("r") }).await;
}

/// A claim that left does not free the grant that its holder took since.
pub async fn a_late_leave_frees_no_newer_count(w: &World) {
    let first = w.claim("r");
    w.granted(&w.a, &first).await;
    w.leaves(&w.a, &first).await;
    let second = w.again(&first);
    w.granted(&w.a, &second).await;
    answered(w.a.leave(&first.to_ref()).await, "leave");
    let answer = w.renew(&w.a, &first.to_ref()).await;
    assert!(matches!(answer, Renewed::Gone(_)), "{answer:?}");
    w.waits(&w.b, &w.claim("r")).await;
}

/// The holder of an exclusive grant may read inside; that of a shared one may not write.
pub async fn there_is_no_upgrade(w: &World) {
    let writer = Claim { mode: Mode::Exclusive, ..w.claim("r") };
    let reader = Claim { mode: Mode::Shared, ..w.claim("s") };
    if !w.supports(Mode::Shared) {
        return w.refused(&w.a, &reader, ErrorKind::Unsupported).await;
    }
    let outer = w.granted(&w.a, &writer).await;
    let inside = Claim { mode: Mode::Shared, ..w.again(&writer) };
    assert_eq!(w.granted(&w.a, &inside).await.token, outer.token);
    w.waits(&w.b, &Claim { mode: Mode::Shared, ..w.claim("r") }).await;
    w.granted(&w.a, &reader).await;
    let upgrade = Claim { mode: Mode::Exclusive, ..w.again(&reader) };
    w.refused(&w.a, &upgrade, ErrorKind::Usage).await;
}

/// Permits that re-enter add nothing to the sum and take slots of the outer grant.
pub async fn inner_permits_add_nothing(w: &World) {
    let two = Mode::Permits { count: 2, limit: 3 };
    let one = Mode::Permits { count: 1, limit: 3 };
    let outer = Claim { mode: two, ..w.claim("p") };
    if !w.supports(two) {
        return w.refused(&w.a, &outer, ErrorKind::Unsupported).await;
    }
    let grant = w.granted(&w.a, &outer).await;
    let inner = w.granted(&w.a, &Claim { mode: one, ..w.again(&outer) }).await;
    assert_eq!(inner.token, grant.token);
    assert!(inner.slots.as_slice().iter().all(|s| grant.slots.as_slice().contains(s)));
    w.granted(&w.b, &Claim { mode: one, ..w.claim("p") }).await;
    w.waits(&w.b, &Claim { mode: one, place: Place::No, ..w.claim("p") }).await;
}
