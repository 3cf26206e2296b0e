//! Renewing: each node is asked for; the session's timeout is renewed by the asking.
//!
//! The nodes are read behind a transaction of the same session that changes nothing: a server that
//! has lost the others cannot answer it, and one that lags has caught up when it does. One for all
//! that are renewed together.

use std::sync::Arc;

use leasehold_core::{Admission, Claim, ClaimRef, Ended, Moment, Renewed, Result, Waiting};

use crate::card::Card;
use crate::enter::{rejoin, told};
use crate::hall::{Hall, Known, data, maybe};
use crate::look::{vanished, watch_own};
use crate::seat::{Seat, Stage};
use crate::wire::{Call, Fail, Now, Op};

pub(crate) async fn renew(hall: &Arc<Hall>, claims: &[ClaimRef]) -> Vec<Renewed> {
    // All are asked for before any is waited for: one round trip.
    let mut proof = None;
    let asked: Vec<_> = claims.iter().map(|claim| (claim, ask(hall, claim, &mut proof))).collect();
    let proven = match proof {
        Some(proof) => proven(proof).await,
        None => Ok(()),
    };
    let mut answers = Vec::with_capacity(claims.len());
    for (claim, asked) in asked {
        let answer = match (asked, &proven) {
            (Asked::Known(Renewed::Waiting(waiting)), _) => wait_on(hall, claim, waiting).await,
            (Asked::Known(answer), _) => answer,
            (Asked::Node(..), Err(fail)) => {
                Renewed::Unknown(hall.error(fail.clone()).on(&claim.resource))
            }
            (Asked::Node(seat, now, call), Ok(())) => match settle(hall, &seat, now, call).await {
                Ok(sent) => extend(hall, &seat, claim, sent),
                Err(fail) => Renewed::Unknown(hall.error(fail).on(&claim.resource)),
            },
        };
        answers.push(answer);
    }
    answers
}

/// A transaction that changes nothing.
fn prove(hall: &Hall, generation: u64) -> Call {
    let path = format!("{}/{}", hall.config.root, crate::names::OWN);
    hall.wire.call(generation, &Op::Multi(vec![Op::Check { path, version: -1 }]))
}

/// Whether the ensemble has answered; what it refuses it has ordered too.
async fn proven(proof: Call) -> Result<(), Fail> {
    match proof.answer().await.result {
        Ok(_) | Err(Fail::Refused(_) | Fail::SessionOver) => Ok(()),
        Err(fail) => Err(fail),
    }
}

/// A claim that waits, unless its holder has been granted another here meanwhile.
async fn wait_on(hall: &Arc<Hall>, claim: &ClaimRef, waiting: Waiting) -> Renewed {
    let Known::Sits(seat) = hall.find(claim.id) else { return Renewed::Waiting(waiting) };
    let whole = Claim { id: claim.id, term: claim.term, ..seat.claim.clone() };
    match rejoin(hall, &seat, &whole).await {
        Ok(Some(Admission::Granted(grant))) => Renewed::Granted(grant),
        Ok(_) => Renewed::Waiting(waiting),
        Err(error) => Renewed::Unknown(error.on(&claim.resource)),
    }
}

enum Asked {
    Known(Renewed),
    Node(Arc<Seat>, Now, Call),
}

fn ask(hall: &Arc<Hall>, claim: &ClaimRef, proof: &mut Option<Call>) -> Asked {
    let gone = |how| Asked::Known(Renewed::Gone(how));
    let seat = match hall.find(claim.id) {
        Known::Nothing => return gone(Ended::Unknown),
        Known::Ended(how) => return gone(how),
        Known::Sits(seat) => seat,
    };
    crate::expire::expire(hall, &seat);
    if let Known::Ended(how) = hall.find(claim.id) {
        return gone(how);
    }
    let facts = seat.facts();
    let token = match &facts.stage {
        // Who waits is to know when nobody can be asked whether it is still so.
        Stage::Waiting(waiting) => {
            return Asked::Known(match hall.wire.session().trouble() {
                None => Renewed::Waiting(waiting.clone()),
                Some(_) => {
                    let away = hall.error(Fail::Lost { maybe: false });
                    Renewed::Unknown(away.on(&claim.resource))
                }
            });
        }
        Stage::Over(how) => return gone(*how),
        Stage::Asked => {
            let unsure = hall.error(Fail::Lost { maybe: true });
            return Asked::Known(Renewed::Unknown(unsure.on(&claim.resource)));
        }
        Stage::Granted(held) => held.token,
    };
    if claim.token.is_some_and(|named| named != token) {
        return gone(Ended::Unknown);
    }
    let generation = facts.generation;
    drop(facts);
    let now = hall.wire.session().now().filter(|now| now.generation == generation);
    match (now, seat.path()) {
        (Some(now), Some(path)) => {
            proof.get_or_insert_with(|| prove(hall, generation));
            let call = hall.wire.call(generation, &Op::Get { path, watch: false });
            Asked::Node(seat, now, call)
        }
        _ => gone(Ended::Expired),
    }
}

/// Takes in what the server says of a grant's node; when it was asked.
async fn settle(hall: &Arc<Hall>, seat: &Arc<Seat>, now: Now, call: Call) -> Result<Moment, Fail> {
    let answer = call.answer().await;
    if matches!(seat.facts().stage, Stage::Over(_)) {
        return Ok(answer.sent);
    }
    let found = match maybe(data(answer.result)) {
        Err(Fail::SessionOver) => return Ok(answer.sent), // told by its stage
        found => found?,
    };
    match found {
        Some((found, stat)) if stat.owner == now.id => {
            if let Some(held) = seat.facts().held_mut()
                && held.version != stat.version
            {
                held.version = stat.version;
                held.broken = held.broken || Card::read(&found).is_none_or(|card| card.broken);
            }
            watch_own(hall, seat, now);
        }
        // A removal of ours may be under way: then that tells how it ended.
        _ => {
            let _turn = seat.turn.lock().await;
            if !matches!(seat.facts().stage, Stage::Over(_)) {
                let how = vanished(hall, seat, now.generation).await?;
                hall.finish(seat, how);
            }
        }
    }
    Ok(answer.sent)
}

/// Gives a claim its new term, if it is still granted.
fn extend(hall: &Arc<Hall>, seat: &Arc<Seat>, claim: &ClaimRef, sent: Moment) -> Renewed {
    crate::expire::expire(hall, seat);
    {
        let mut facts = seat.facts();
        let broken = facts.held().is_some_and(|held| held.broken);
        match facts.holds.iter_mut().find(|hold| hold.id == claim.id) {
            Some(_) if broken => return Renewed::Gone(Ended::Broken),
            Some(hold) => {
                // A longer term that was answered before is not cut.
                if sent + claim.term >= hold.ends {
                    hold.term = claim.term;
                    hold.sent = sent;
                    hold.ends = sent + claim.term;
                }
            }
            None => {
                drop(facts);
                return Renewed::Gone(match hall.find(claim.id) {
                    Known::Ended(how) => how,
                    _ => Ended::Unknown,
                });
            }
        }
    }
    let whole = Claim { id: claim.id, ..seat.claim.clone() };
    match (told(hall, seat, &whole), claim.token) {
        (Some(Admission::Granted(grant)), Some(_)) => Renewed::Alive { until: grant.until },
        (Some(Admission::Granted(grant)), None) => Renewed::Granted(grant),
        (Some(Admission::Gone(how)), _) => Renewed::Gone(how),
        _ => Renewed::Gone(Ended::Unknown),
    }
}

/// Whether a grant still stands at the server, and when that was asked. Under the seat's turn.
pub(crate) async fn verify(hall: &Arc<Hall>, seat: &Arc<Seat>) -> Result<Option<Moment>> {
    let generation = seat.facts().generation;
    let Some(now) = hall.wire.session().now().filter(|now| now.generation == generation) else {
        return Ok(None);
    };
    let Some(path) = seat.path() else { return Ok(None) };
    let proof = prove(hall, generation);
    let get = hall.wire.call(generation, &Op::Get { path, watch: false });
    proven(proof).await.map_err(|e| hall.error(e))?;
    let answer = get.answer().await;
    let found = maybe(data(answer.result)).map_err(|e| hall.error(e))?;
    match found {
        Some((found, stat)) if stat.owner == now.id => {
            if let Some(held) = seat.facts().held_mut() {
                held.version = stat.version;
                held.broken = held.broken || Card::read(&found).is_none_or(|card| card.broken);
            }
            Ok(Some(answer.sent))
        }
        _ => {
            let how = vanished(hall, seat, generation).await.map_err(|e| hall.error(e))?;
            hall.finish(seat, how);
            Ok(None)
        }
    }
}
