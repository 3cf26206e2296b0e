//! Leaving: the contender, its mark and its slots go in one step, and how a grant ended is
//! remembered with it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, ClaimRef, Ended, Left, Result};

use crate::card::{Card, Mark, Memory};
use crate::enter::{find, get, make_parents};
use crate::hall::{Hall, Known};
use crate::look::vanished;
use crate::seat::{Seat, Stage};
use crate::wire::{Fail, Make, Now, Op, code};

/// How often a removal starts over because the node was changed at the same time.
const TRIES: usize = 10;

pub(crate) async fn leave(hall: &Arc<Hall>, claim: &ClaimRef) -> Result<Left> {
    let seat = match hall.find(claim.id) {
        Known::Sits(seat) => seat,
        Known::Ended(how) => {
            if claim.enter_unanswered {
                hall.bury(claim.id, how, claim.term);
            }
            return Ok(Left::Gone(how));
        }
        Known::Nothing => {
            if claim.enter_unanswered {
                hall.bury(claim.id, Ended::Released, claim.term);
                return Ok(Left::Gone(Ended::Released));
            }
            return Ok(Left::Gone(Ended::Unknown));
        }
    };
    crate::expire::expire(hall, &seat);
    let turn = seat.turn.lock().await;
    let is_last = {
        let mut facts = seat.facts();
        if facts.hold(claim.id).is_none() {
            drop(facts);
            return Ok(Left::Gone(match hall.find(claim.id) {
                Known::Ended(how) => how,
                _ => Ended::Unknown,
            }));
        }
        let is_last = facts.holds.len() == 1;
        if is_last {
            facts.leaving = true;
        } else {
            facts.holds.retain(|hold| hold.id != claim.id);
        }
        is_last
    };
    if !is_last {
        hall.bury(claim.id, Ended::Released, claim.term);
        return Ok(Left::Released);
    }
    let removed = remove(hall, &seat, Ended::Released).await;
    drop(turn);
    match removed {
        Ok(None) => {
            hall.finish(&seat, Ended::Released);
            hall.bury(claim.id, Ended::Released, claim.term);
            Ok(Left::Released)
        }
        Ok(Some(how)) => {
            hall.finish(&seat, how);
            hall.bury(claim.id, how, claim.term);
            Ok(Left::Gone(how))
        }
        Err(fail) => {
            retry(hall, &seat, Ended::Released);
            Err(hall.error(fail))
        }
    }
}

/// Takes a refused claim or a try back; it may be entered again. Under the seat's turn.
pub(crate) async fn take_back(hall: &Arc<Hall>, seat: &Arc<Seat>) -> Result<()> {
    match remove(hall, seat, Ended::Released).await {
        Ok(_) => {
            hall.forget(seat);
            Ok(())
        }
        Err(fail) => {
            seat.facts().leaving = true;
            retry(hall, seat, Ended::Released);
            Err(hall.error(fail))
        }
    }
}

/// Goes on removing until the server has answered, or the session has ended and the node with it.
pub(crate) fn retry(hall: &Arc<Hall>, seat: &Arc<Seat>, how: Ended) {
    let (weak, seat) = (Arc::downgrade(hall), Arc::clone(seat));
    let seed = hall.now().as_nanos();
    hall.runtime.spawn(async move {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2), seed);
        loop {
            tokio::time::sleep(backoff.next_wait()).await;
            let Some(hall) = weak.upgrade() else { return };
            let _turn = seat.turn.lock().await;
            if matches!(seat.facts().stage, Stage::Over(_)) {
                return;
            }
            match remove(&hall, &seat, how).await {
                Ok(other) => return hall.finish(&seat, other.unwrap_or(how)),
                Err(fail) => tracing::debug!(?fail, "a removal is tried again"),
            }
        }
    });
}

/// Removes a seat's node; how it had ended already, if it had. Under the seat's turn.
pub(crate) async fn remove(
    hall: &Arc<Hall>,
    seat: &Arc<Seat>,
    how: Ended,
) -> Result<Option<Ended>, Fail> {
    for _ in 0..TRIES {
        let (stage, generation) = {
            let facts = seat.facts();
            (facts.stage.clone(), facts.generation)
        };
        if let Stage::Over(how) = stage {
            return Ok(Some(how));
        }
        if generation == 0 {
            return Ok(None); // it was never asked for
        }
        let Some(now) = hall.wire.session().now().filter(|now| now.generation == generation) else {
            return match &seat.facts().stage {
                Stage::Over(how) => Ok(Some(*how)),
                _ => Err(Fail::SessionOver),
            };
        };
        let Some(path) = seat.path() else {
            match bar(hall, seat, now).await? {
                Some(name) => {
                    seat.facts().node = Some(name);
                    continue;
                }
                None => return Ok(Some(Ended::Released)),
            }
        };
        let ops = removal(seat, &stage, path, how);
        seat.facts().removal_sent = true;
        match hall.ask(generation, &Op::Multi(ops)).await.result {
            Ok(_) => return Ok(None),
            Err(Fail::Refused(refusal)) => match (refusal.code, refusal.at) {
                (code::NO_NODE, 0) => return vanished(hall, seat, generation).await.map(Some),
                (code::BAD_VERSION, 0) => reread(hall, seat, generation).await?,
                (code::NO_NODE, _) => make_parents(hall, seat, now).await?,
                _ => return Err(Fail::Refused(refusal)),
            },
            Err(fail) => return Err(fail),
        }
    }
    Err(Fail::Lost { maybe: true })
}

fn removal(seat: &Seat, stage: &Stage, path: String, how: Ended) -> Vec<Op> {
    let mark = Op::Delete { path: seat.paths.mark(seat.claim.id), version: -1 };
    let Stage::Granted(held) = stage else {
        return vec![Op::Delete { path, version: -1 }, mark];
    };
    let how = if held.broken { Ended::Broken } else { how };
    let memory = Memory { how, token: Some(held.token) }.write();
    let mut ops = vec![Op::Delete { path, version: held.version }, mark];
    ops.push(Op::Set { path: seat.paths.memory.clone(), data: memory, version: -1 });
    for &slot in held.slots.as_slice() {
        ops.push(Op::Delete { path: seat.paths.slot(slot), version: -1 });
    }
    ops
}

/// Its data was set by another: it was broken.
pub(crate) async fn reread(hall: &Hall, seat: &Seat, generation: u64) -> Result<(), Fail> {
    let Some(path) = seat.path() else { return Ok(()) };
    let Some((found, stat)) = get(hall, generation, path).await? else { return Ok(()) };
    if let Some(held) = seat.facts().held_mut() {
        held.version = stat.version;
        // What cannot be read was not written by us: Curator revokes so.
        held.broken = held.broken || Card::read(&found).is_none_or(|card| card.broken);
    }
    Ok(())
}

/// Keeps an enter whose answer was lost from arriving after this; its name if it has arrived.
async fn bar(hall: &Arc<Hall>, seat: &Seat, now: Now) -> Result<Option<String>, Fail> {
    let path = seat.paths.mark(seat.claim.id);
    let op = Op::Create { path: path.clone(), data: Mark::Barred.write(), make: Make::Persistent };
    match hall.ask(now.generation, &op).await.result {
        // Its mark stands in the way of the enter's own; once the term is over nothing of this
        // connection can be on its way any more.
        Ok(_) => {
            let (weak, term) = (Arc::downgrade(hall), seat.claim.term);
            hall.runtime.spawn(async move {
                tokio::time::sleep(term).await;
                if let Some(hall) = weak.upgrade() {
                    let remove = Op::Delete { path, version: -1 };
                    let _ = hall.ask(now.generation, &remove).await;
                }
            });
            Ok(None)
        }
        // Nothing is above it, so nothing has arrived; but another may make the parents.
        Err(Fail::Refused(refusal)) if refusal.code == code::NO_NODE => {
            make_parents(hall, seat, now).await?;
            Box::pin(bar(hall, seat, now)).await
        }
        Err(Fail::Refused(refusal)) if refusal.code == code::NODE_EXISTS => {
            Ok(find(hall, seat, now).await?.ok())
        }
        Err(fail) => Err(fail),
    }
}
