//! What must survive when the store is hurt.

use leasehold_core::{Claim, Cursor, Ended, Life, Place, Previous, Renewed};
use std::time::Duration;

use crate::harness::Hurt;

use super::world::{World, answered};

/// The death of a holder frees what it held at once, where the store sees it; elsewhere its term
/// does.
pub async fn a_dead_holder_frees(w: &World) {
    let sees = w.profile().sees_death;
    let term = if sees { w.long() } else { w.short() };
    let held = Claim { life: Life::Process, term, ..w.claim("r") };
    let client = w.open();
    let grant = w.granted(&client, &held).await;
    let next = w.claim("r");
    w.waits(&w.b, &next).await;
    w.hurt(Hurt::Kill(&client));
    let after = w.until_granted(&w.b, &next).await;
    assert!(after.token > grant.token);
    let unclean = matches!(after.previous, Previous::Ended(how) if !how.is_clean());
    assert!(unclean, "{:?}", after.previous);
    let answer = w.renew(&w.a, &held.to_ref()).await;
    assert!(matches!(answer, Renewed::Gone(_)), "death is final: {answer:?}");
}

/// A claim of term life outlives the process that made it.
pub async fn a_claim_of_term_life_outlives_its_maker(w: &World) {
    let held = w.claim("r");
    if held.life == Life::Process {
        return assert!(!w.profile().transferable);
    }
    let client = w.open();
    w.granted(&client, &held).await;
    w.hurt(Hurt::Kill(&client));
    w.pass(w.short());
    w.waits(&w.b, &Claim { place: Place::No, ..w.claim("r") }).await;
    w.leaves(&w.a, &held).await;
}

/// A dead waiter is passed: at once where the store sees its death, else after its place term.
pub async fn a_dead_waiter_is_passed(w: &World) {
    let (held, next) = (w.claim("r"), w.claim("r"));
    let client = w.open();
    let place = Place::Term(Duration::from_secs(1));
    let waiter = Claim { life: Life::Process, place, term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &held).await;
    w.waits(&client, &waiter).await;
    w.waits(&w.b, &next).await;
    w.hurt(Hurt::Kill(&client));
    w.leaves(&w.a, &held).await;
    w.until_granted(&w.b, &next).await;
}

/// A name of which the store lost everything is free, its holder is told, and tokens rise unless
/// the profile says that they might not.
pub async fn an_evicted_holder_is_told(w: &World) {
    let held = w.claim("r");
    let grant = w.granted(&w.a, &held).await;
    if !w.hurt(Hurt::Evict(&held.resource)) {
        return assert!(w.profile().token_hazards.is_empty());
    }
    let mut named = held.to_ref();
    named.token = Some(grant.token);
    let answer = w.renew(&w.a, &named).await;
    let told = matches!(answer, Renewed::Gone(Ended::Unknown | Ended::Evicted));
    assert!(told, "{answer:?}");
    let next = w.granted(&w.b, &w.claim("r")).await;
    assert!(next.token > grant.token || !w.profile().token_hazards.is_empty());
}

/// After all connections were cut, what was granted and queued is still so.
pub async fn cut_connections_lose_nothing(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    let grant = w.granted(&w.a, &held).await;
    let waiting = w.waits(&w.b, &waiter).await;
    w.hurt(Hurt::Sever);
    let mut named = held.to_ref();
    named.token = Some(grant.token);
    w.until_some("a grant is renewed after the cut", async || match w.renew(&w.a, &named).await {
        Renewed::Alive { .. } => Some(()),
        Renewed::Unknown(error) if error.kind().is_transient() => None,
        other => panic!("{other:?}"),
    })
    .await;
    if let Some(before) = waiting {
        let still = w
            .until_some("a waiter is heard after the cut", async || {
                match w.renew(&w.b, &waiter.to_ref()).await {
                    Renewed::Waiting(still) => Some(still),
                    Renewed::Unknown(error) if error.kind().is_transient() => None,
                    other => panic!("{other:?}"),
                }
            })
            .await;
        assert_eq!(still.ticket, before.ticket);
    }
    answered(w.a.leave(&named).await, "leave");
    w.until_granted(&w.b, &waiter).await;
}

/// A reconnect wakes every waiter once, so that a hand-over told meanwhile is not missed.
pub async fn a_reconnect_wakes_waiters(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    if w.waits(&w.b, &waiter).await.is_none() {
        return;
    }
    // Hear what has happened so far, so that only the cut can wake.
    let first = w.watch(&w.b, &held.resource, Cursor::default(), Duration::from_millis(100));
    let since = match first.heard(w).await {
        leasehold_core::Hint::Moved(cursor) => cursor,
        leasehold_core::Hint::Granted(pushed) => panic!("nothing was handed over: {pushed:?}"),
    };
    let watch = w.watch(&w.b, &held.resource, since, w.long());
    if w.hurt(Hurt::Sever) {
        watch.heard(w).await;
    } else {
        w.leaves(&w.a, &held).await; // nothing can be cut: the hand-over itself wakes
        watch.heard(w).await;
    }
}

/// While a server is silent nothing is answered as lost or extended; afterwards all goes on.
pub async fn a_silent_server_loses_nothing(w: &World) {
    let held = w.claim("r");
    let grant = w.granted(&w.a, &held).await;
    let mut named = held.to_ref();
    named.token = Some(grant.token);
    if w.hurt(Hurt::Pause) {
        let (store, late) = (std::sync::Arc::clone(&w.a), named.clone());
        let asked = w.spawn(move || async move {
            let answers = store.renew(&[late]).await;
            let unclear = |a: &Renewed| matches!(a, Renewed::Alive { .. } | Renewed::Unknown(_));
            assert!(answers.iter().all(unclear), "{answers:?}");
        });
        w.pass(Duration::from_secs(1));
        w.hurt(Hurt::Resume);
        assert!(asked.join().is_ok(), "a renewal of a silent server failed");
    }
    w.until_some("a grant is renewed after the silence", async || {
        match w.renew(&w.a, &named).await {
            Renewed::Alive { .. } => Some(()),
            Renewed::Unknown(error) if error.kind().is_transient() => None,
            other => panic!("{other:?}"),
        }
    })
    .await;
}
