//! Permits: numbered slots that fit a limit.

use leasehold_core::{Admission, Claim, ErrorKind, Mode, Place};

use super::world::{World, answered};

const LIMIT: u32 = 3;

fn permits(w: &World, count: u32) -> Claim {
    Claim { mode: Mode::Permits { count, limit: LIMIT }, ..w.claim("r") }
}

/// Whether the store has permits; if not, it has to say so.
async fn supported(w: &World) -> bool {
    let claim = permits(w, 1);
    let supported = w.supports(claim.mode);
    if !supported {
        w.refused(&w.a, &claim, ErrorKind::Unsupported).await;
    }
    supported
}

/// As many are admitted as fit the limit, each with slots of its own.
pub async fn they_fit_the_limit_and_share_no_slot(w: &World) {
    if !supported(w).await {
        return;
    }
    let (two, one) = (permits(w, 2), permits(w, 1));
    let first = w.granted(&w.a, &two).await;
    let second = w.granted(&w.b, &one).await;
    assert!(second.token > first.token);
    let mut slots = [first.slots.as_slice(), second.slots.as_slice()].concat();
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    w.waits(&w.a, &Claim { place: Place::No, ..permits(w, 1) }).await;
}

/// A slot that was given back is given again, with a higher token.
pub async fn a_free_slot_is_given_again(w: &World) {
    if !supported(w).await {
        return;
    }
    let claims = [permits(w, 1), permits(w, 1), permits(w, 1)];
    let mut grants = Vec::new();
    for claim in &claims {
        grants.push(w.granted(&w.a, claim).await);
    }
    w.leaves(&w.a, &claims[1]).await;
    let next = w.granted(&w.b, &permits(w, 1)).await;
    assert_eq!(next.slots, grants[1].slots);
    assert!(next.token > grants[2].token);
}

/// A release hands over to every waiter that now fits.
pub async fn a_release_hands_over_to_all_that_fit(w: &World) {
    if !supported(w).await {
        return;
    }
    let all = permits(w, 3);
    w.granted(&w.a, &all).await;
    let waiters = [permits(w, 1), permits(w, 2)];
    for waiter in &waiters {
        w.waits(&w.b, waiter).await;
    }
    w.leaves(&w.a, &all).await;
    let mut slots = Vec::new();
    for waiter in &waiters {
        slots.extend_from_slice(w.until_granted(&w.b, waiter).await.slots.as_slice());
    }
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
}

/// A large claim that waits is not passed by small ones for ever, where the store is fair.
pub async fn small_claims_do_not_starve_a_large_one(w: &World) {
    if !supported(w).await {
        return;
    }
    let (one, large, small) = (permits(w, 1), permits(w, 3), permits(w, 1));
    w.granted(&w.a, &one).await;
    let queued = w.waits(&w.b, &large).await.is_some();
    if !(queued && w.profile().fair) {
        let answer = answered(w.enter(&w.a, &small).await, "enter");
        return assert!(matches!(answer, Admission::Granted(_)), "{answer:?}");
    }
    w.waits(&w.a, &small).await;
    w.leaves(&w.a, &one).await;
    w.until_granted(&w.b, &large).await;
    w.waits(&w.a, &small).await;
    w.leaves(&w.b, &large).await;
    w.until_granted(&w.a, &small).await;
}

/// Under contention of several clients no more slots are out than there are, and none twice.
pub async fn no_slot_is_out_twice_under_contention(w: &World) {
    if !supported(w).await {
        return;
    }
    let out = std::sync::Arc::new(std::sync::Mutex::new([false; LIMIT as usize]));
    let threads: Vec<_> = (0..5_u32)
        .map(|n| {
            let claims: Vec<Claim> = (0..8).map(|k| permits(w, (n + k) % 2 + 1)).collect();
            let (store, out) = (w.open(), std::sync::Arc::clone(&out));
            w.spawn(move || async move {
                for claim in claims {
                    let claim = super::tokens::take(&store, claim).await;
                    mark(&out, claim.1.slots.as_slice(), true);
                    std::thread::yield_now();
                    mark(&out, claim.1.slots.as_slice(), false);
                    answered(store.leave(&claim.0.to_ref()).await, "leave");
                }
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().is_ok(), "a contender failed");
    }
}

fn mark(out: &std::sync::Mutex<[bool; LIMIT as usize]>, slots: &[u32], taken: bool) {
    let mut out = out.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for &slot in slots {
        let was = std::mem::replace(&mut out[slot as usize], taken);
        assert_ne!(was, taken, "slot {slot} is out twice");
    }
}
