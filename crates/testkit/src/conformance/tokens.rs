//! Tokens: they rise over every end, and exclusion holds under contention.

use leasehold_core::{Admission, Claim, ClaimId, Cursor, Grant, Place, Store, Token};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::world::{World, answered};

/// They rise over release, expiry, break and change of client.
pub async fn they_rise_over_every_end(w: &World) {
    let mut newest: Option<Token> = None;
    for round in 0..3 {
        for end in ["release", "expiry", "break"] {
            let store = if round % 2 == 0 { &w.a } else { &w.b };
            let term = if end == "expiry" { w.short() } else { w.long() };
            let claim = Claim { term, place: Place::No, ..w.claim("r") };
            let token = w.until_granted(store, &claim).await.token;
            assert!(Some(token) > newest, "{token} after {newest:?} and a {end}");
            newest = Some(token);
            match end {
                "release" => w.leaves(store, &claim).await,
                "expiry" => w.pass(term),
                _ => drop(answered(w.b.break_(&claim.resource, None, true).await, "break")),
            }
        }
    }
}

/// They fit JSON, and names count for themselves.
pub async fn they_survive_json(w: &World) {
    for suffix in ["r", "s"] {
        let grant = w.granted(&w.a, &w.claim(suffix)).await;
        assert!(grant.token <= Token::MAX);
    }
}

/// A counter that several clients read, add to and write under the lock is exact, and the tokens
/// rise in the order of the holds.
pub async fn a_counter_under_the_lock_is_exact(w: &World) {
    const CLIENTS: usize = 4;
    const ROUNDS: usize = 12;
    let protected: Arc<Mutex<(usize, Vec<Token>)>> = Arc::default();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let claims: Vec<Claim> = (0..ROUNDS).map(|_| w.claim("r")).collect();
            let (store, protected) = (w.open(), Arc::clone(&protected));
            w.spawn(move || async move {
                for claim in claims {
                    let (claim, grant) = take(&store, claim).await;
                    let read = lock(&protected).0;
                    std::thread::yield_now();
                    write(&protected, read + 1, grant.token);
                    answered(store.leave(&claim.to_ref()).await, "leave");
                }
            })
        })
        .collect();
    for thread in threads {
        assert!(thread.join().is_ok(), "a contender failed");
    }
    let thing = lock(&protected);
    assert_eq!(thing.0, CLIENTS * ROUNDS, "an addition was lost: two held at once");
    assert!(thing.1.is_sorted_by(|a, b| a < b), "tokens in order of holds: {:?}", thing.1);
}

fn write(protected: &Mutex<(usize, Vec<Token>)>, count: usize, token: Token) {
    let mut thing = lock(protected);
    thing.0 = count;
    thing.1.push(token);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Acquires as a plain client does: enter, wait for word, enter again; under a new id when a first
/// term ran out on the way.
pub(super) async fn take(store: &Arc<dyn Store>, mut claim: Claim) -> (Claim, Grant) {
    let mut since = Cursor::default();
    loop {
        match answered(store.enter(&claim).await, "enter") {
            Admission::Granted(grant) => return (claim, grant),
            Admission::Waiting(_) | Admission::Busy(_) => {}
            Admission::Gone(_) => {
                claim.id = ClaimId::from_bits(claim.id.bits().wrapping_add(1 << 64));
                continue;
            }
        }
        let at_most = Duration::from_millis(200);
        match answered(
            store.changed(&claim.resource, Some(claim.id), since, at_most).await,
            "watch",
        ) {
            leasehold_core::Hint::Moved(cursor) => since = cursor,
            leasehold_core::Hint::Granted(_) => {}
        }
    }
}
