//! Terms that run out while the session lives: this client ends them, after belief has ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::Ended;

use crate::hall::Hall;
use crate::leave;
use crate::seat::{Hold, Seat};

/// How often terms are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How many ticks pass between two sweeps.
const SWEEP: u32 = 200;

/// Looks at the terms for as long as the store is there.
pub(crate) async fn watch(weak: Weak<Hall>) {
    let mut ticks = 0_u32;
    loop {
        tokio::time::sleep(TICK).await;
        let Some(hall) = weak.upgrade() else { return };
        for seat in hall.all_seats() {
            expire(&hall, &seat);
        }
        ticks = ticks.wrapping_add(1);
        if ticks.is_multiple_of(SWEEP) {
            hall.sweep();
        }
    }
}

/// Ends the claims of a seat whose terms have run out.
pub(crate) fn expire(hall: &Arc<Hall>, seat: &Arc<Seat>) {
    let now = hall.now();
    let (late, how, is_last) = {
        let mut facts = seat.facts();
        let Some(held) = facts.held() else { return };
        if facts.leaving || facts.holds.iter().all(|hold| hold.ends > now) {
            return;
        }
        let how = if held.broken { Ended::Broken } else { Ended::Expired };
        let (keep, late): (Vec<Hold>, Vec<Hold>) =
            facts.holds.drain(..).partition(|hold| hold.ends > now);
        facts.holds = keep;
        let is_last = facts.holds.is_empty();
        facts.leaving |= is_last;
        (late, how, is_last)
    };
    for hold in late {
        hall.bury(hold.id, how, hold.term);
    }
    hall.stir(seat);
    if is_last {
        let (hall, seat) = (Arc::clone(hall), Arc::clone(seat));
        hall.runtime.clone().spawn(async move {
            let turn = seat.turn.lock().await;
            let removed = leave::remove(&hall, &seat, Ended::Expired).await;
            drop(turn);
            match removed {
                Ok(other) => hall.finish(&seat, other.unwrap_or(how)),
                Err(_) => leave::retry(&hall, &seat, Ended::Expired),
            }
        });
    }
}
