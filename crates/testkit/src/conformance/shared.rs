//! Shared claims: together with each other, apart from exclusive ones, and starving nobody.

use leasehold_core::{Admission, Claim, ErrorKind, Mode, Place};

use super::world::{World, answered};

fn reader(w: &World) -> Claim {
    Claim { mode: Mode::Shared, ..w.claim("r") }
}

/// Whether the store has shared claims; if not, it has to say so.
async fn supported(w: &World) -> bool {
    let supported = w.supports(Mode::Shared);
    if !supported {
        w.refused(&w.a, &reader(w), ErrorKind::Unsupported).await;
    }
    supported
}

/// Readers hold together, each with a token above those that were returned before it.
pub async fn readers_hold_together(w: &World) {
    if !supported(w).await {
        return;
    }
    let first = w.granted(&w.a, &reader(w)).await;
    let second = w.granted(&w.b, &reader(w)).await;
    assert!(second.token > first.token);
    let queue = answered(w.a.inspect(&w.name("r")).await, "inspect");
    assert_eq!(queue.holders().count(), 2);
}

/// A writer waits until the last reader has left.
pub async fn a_writer_waits_for_all_readers(w: &World) {
    if !supported(w).await {
        return;
    }
    let (one, two, writer) = (reader(w), reader(w), w.claim("r"));
    w.granted(&w.a, &one).await;
    let newest = w.granted(&w.b, &two).await;
    w.waits(&w.b, &writer).await;
    w.leaves(&w.a, &one).await;
    w.waits(&w.b, &writer).await;
    w.leaves(&w.b, &two).await;
    assert!(w.until_granted(&w.b, &writer).await.token > newest.token);
    w.waits(&w.a, &Claim { place: Place::No, ..reader(w) }).await;
}

/// A reader that comes after a waiting writer does not pass it, where the store is fair.
pub async fn readers_do_not_starve_a_writer(w: &World) {
    if !supported(w).await {
        return;
    }
    let (first, writer, late) = (reader(w), w.claim("r"), reader(w));
    w.granted(&w.a, &first).await;
    let queued = w.waits(&w.b, &writer).await.is_some();
    if !(queued && w.profile().fair) {
        let answer = answered(w.enter(&w.a, &late).await, "enter");
        return assert!(matches!(answer, Admission::Granted(_)), "{answer:?}");
    }
    w.waits(&w.a, &late).await;
    w.waits(&w.a, &Claim { place: Place::No, ..reader(w) }).await;
    w.leaves(&w.a, &first).await;
    w.until_granted(&w.b, &writer).await;
    w.waits(&w.a, &late).await;
    w.leaves(&w.b, &writer).await;
    w.until_granted(&w.a, &late).await;
}

/// When a writer leaves, all readers that wait next to each other are admitted.
pub async fn a_writer_hands_over_to_all_readers(w: &World) {
    if !supported(w).await {
        return;
    }
    let writer = w.claim("r");
    let before = w.granted(&w.a, &writer).await;
    let readers: Vec<Claim> = (0..5).map(|_| reader(w)).collect();
    for reader in &readers {
        w.waits(&w.b, reader).await;
    }
    w.leaves(&w.a, &writer).await;
    for reader in &readers {
        assert!(w.until_granted(&w.b, reader).await.token > before.token);
    }
    let queue = answered(w.a.inspect(&w.name("r")).await, "inspect");
    assert_eq!(queue.holders().count(), readers.len());
}

/// A waiting writer that withdraws lets the readers behind it in.
pub async fn a_withdrawn_writer_lets_readers_in(w: &World) {
    if !supported(w).await {
        return;
    }
    let (first, writer, late) = (reader(w), w.claim("r"), reader(w));
    w.granted(&w.a, &first).await;
    if w.waits(&w.b, &writer).await.is_some() && w.profile().fair {
        w.waits(&w.a, &late).await;
        w.leaves(&w.b, &writer).await;
    }
    w.until_granted(&w.a, &late).await;
}
