//! Leaving: this claim only, in whatever state it is, once.

use leasehold_core::{Admission, Claim, Ended, Left, Place, Renewed};

use super::world::{World, answered};

/// A leave ends this claim only; what else its holder has stays.
pub async fn it_ends_this_claim_only(w: &World) {
    let (r, s) = (w.claim("r"), w.claim("s"));
    let s = Claim { holder: r.holder.clone(), ..s };
    w.granted(&w.a, &r).await;
    let kept = w.granted(&w.a, &s).await;
    w.leaves(&w.a, &r).await;
    assert_eq!(w.granted(&w.a, &s).await.token, kept.token);
    w.waits(&w.b, &w.claim("s")).await;
    w.granted(&w.b, &w.claim("r")).await;
}

/// A leave sent again says gone, released.
pub async fn sent_again_it_says_gone(w: &World) {
    let claim = w.claim("r");
    w.granted(&w.a, &claim).await;
    w.leaves(&w.a, &claim).await;
    let again = answered(w.a.leave(&claim.to_ref()).await, "leave");
    assert_eq!(again, Left::Gone(Ended::Released));
}

/// A leave whose first reply was lost does not touch a newer grant, of the same holder either.
pub async fn a_repeated_leave_touches_no_newer_grant(w: &World) {
    let old = w.claim("r");
    w.granted(&w.a, &old).await;
    w.leaves(&w.a, &old).await;
    let new = w.again(&old);
    let grant = w.granted(&w.a, &new).await;
    let again = answered(w.a.leave(&old.to_ref()).await, "leave");
    assert_eq!(again, Left::Gone(Ended::Released));
    assert_eq!(w.granted(&w.a, &new).await.token, grant.token);
    w.waits(&w.b, &w.claim("r")).await;
}

/// A late leave of what has run out does not touch the next grant.
pub async fn a_late_leave_touches_no_newer_grant(w: &World) {
    let old = Claim { term: w.short(), ..w.claim("r") };
    w.granted(&w.a, &old).await;
    let new = w.claim("r");
    let grant = w.until_granted(&w.b, &new).await;
    let late = answered(w.a.leave(&old.to_ref()).await, "leave");
    assert_eq!(late, Left::Gone(Ended::Expired));
    assert_eq!(w.granted(&w.b, &new).await.token, grant.token);
}

/// A waiting claim that leaves is out of the queue.
pub async fn a_waiter_withdraws(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    if w.waits(&w.b, &waiter).await.is_some() {
        w.leaves(&w.b, &waiter).await;
    }
    let queue = answered(w.a.inspect(&held.resource).await, "inspect");
    assert_eq!(queue.waiters().count(), 0);
    w.leaves(&w.a, &held).await;
    w.granted(&w.a, &w.claim("r")).await;
}

/// A waiter that withdraws after it was granted, and before it knew, frees the resource.
pub async fn a_withdrawal_that_crosses_the_grant_frees_it(w: &World) {
    let (held, waiter) = (w.claim("r"), w.claim("r"));
    w.granted(&w.a, &held).await;
    let queued = w.waits(&w.b, &waiter).await.is_some();
    w.leaves(&w.a, &held).await;
    if queued {
        w.leaves(&w.b, &waiter).await;
    }
    w.granted(&w.a, &Claim { place: Place::No, ..w.claim("r") }).await;
}

/// A leave that finds nothing, sent while an enter is unanswered, bars that enter.
pub async fn an_enter_after_its_leave_makes_no_ghost(w: &World) {
    let claim = w.claim("r");
    let mut unanswered = claim.to_ref();
    unanswered.enter_unanswered = true;
    let left = answered(w.a.leave(&unanswered).await, "leave");
    assert!(matches!(left, Left::Gone(_)), "{left:?}");
    w.gone(&w.a, &claim).await;
    let queue = answered(w.a.inspect(&claim.resource).await, "inspect");
    assert!(queue.entries.is_empty(), "a ghost: {queue:?}");
    w.granted(&w.b, &w.claim("r")).await;
}

/// A leave that finds its claim ended bars an unanswered enter for a whole term from the leave, not
/// from that end.
pub async fn an_enter_is_barred_for_a_term_from_its_leave(w: &World) {
    let term = w.short() * 4;
    // Again on another name where the machine took so long that the bar had ended.
    for name in ["r", "s", "t", "u"] {
        let claim = Claim { term, ..w.claim(name) };
        w.granted(&w.a, &claim).await;
        w.pass(term);
        w.until_granted(&w.b, &w.claim(name)).await;
        w.pass(term * 3 / 4);
        let left_at = w.now();
        let mut unanswered = claim.to_ref();
        unanswered.enter_unanswered = true;
        let left = answered(w.a.leave(&unanswered).await, "leave");
        assert!(matches!(left, Left::Gone(_)), "{left:?}");
        w.pass(term / 2);
        let late = answered(w.enter(&w.a, &claim).await, "enter");
        if w.now() < left_at + term {
            return assert!(matches!(late, Admission::Gone(_)), "it stands again: {late:?}");
        }
    }
    panic!("this machine is too slow to tell");
}

/// A leave that finds its claim although the enter is unanswered ends it, and bars it too.
pub async fn an_unanswered_enter_that_arrived_is_ended(w: &World) {
    let claim = w.claim("r");
    w.granted(&w.a, &claim).await;
    let mut unanswered = claim.to_ref();
    unanswered.enter_unanswered = true;
    let left = answered(w.a.leave(&unanswered).await, "leave");
    assert_eq!(left, Left::Released);
    w.gone(&w.a, &claim).await;
    w.granted(&w.b, &w.claim("r")).await;
}

/// A claim may be renewed and ended by another client that has its id.
pub async fn another_client_may_act_by_the_id(w: &World) {
    let claim = w.claim("r");
    w.granted(&w.a, &claim).await;
    if !w.profile().transferable {
        let answer = w.renew(&w.b, &claim.to_ref()).await;
        let refused = matches!(answer, Renewed::Gone(_) | Renewed::Unknown(_));
        return assert!(refused, "the profile says that claims stay with their client: {answer:?}");
    }
    let answer = w.renew(&w.b, &claim.to_ref()).await;
    assert!(matches!(answer, Renewed::Granted(_)), "{answer:?}");
    w.leaves(&w.b, &claim).await;
    w.granted(&w.a, &w.claim("r")).await;
}

/// A client that closes leaves its claims where they are.
pub async fn closing_a_client_ends_no_claim_of_term_life(w: &World) {
    let claim = w.claim("r");
    let client = w.open();
    w.granted(&client, &claim).await;
    client.close().await;
    if claim.life == leasehold_core::Life::Process {
        return; // its end is its session's, which cases of death ask for
    }
    w.waits(&w.b, &Claim { place: Place::No, ..w.claim("r") }).await;
    w.leaves(&w.a, &claim).await;
    w.granted(&w.b, &w.claim("r")).await;
}
