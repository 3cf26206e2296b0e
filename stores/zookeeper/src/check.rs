//! Asking the ensemble whether a claim is granted.

use std::sync::Arc;

use leasehold_core::{ClaimRef, Result};

use crate::hall::{Hall, Known};
use crate::wire::{Fail, Op, code};

/// The node of a claim that is granted, as far as is known here.
pub(crate) fn node(hall: &Arc<Hall>, claim: &ClaimRef) -> Option<String> {
    let Known::Sits(seat) = hall.find(claim.id) else { return None };
    crate::expire::expire(hall, &seat);
    let stands = {
        let facts = seat.facts();
        facts.hold(claim.id).is_some() && facts.held().is_some_and(|held| !held.broken)
    };
    seat.path().filter(|_| stands)
}

pub(crate) async fn check(hall: &Arc<Hall>, claim: &ClaimRef) -> Result<bool> {
    let Known::Sits(seat) = hall.find(claim.id) else { return Ok(false) };
    crate::expire::expire(hall, &seat);
    let (held, generation) = {
        let facts = seat.facts();
        let held = facts.hold(claim.id).and_then(|_| facts.held()).cloned();
        (held, facts.generation)
    };
    let (Some(held), Some(path)) = (held, seat.path()) else { return Ok(false) };
    if held.broken || claim.token.is_some_and(|named| named != held.token) {
        return Ok(false);
    }
    let op = Op::Multi(vec![Op::Check { path, version: held.version }]);
    match hall.ask(generation, &op).await.result {
        Ok(_) => Ok(true),
        Err(Fail::SessionOver) => Ok(false),
        Err(Fail::Refused(refusal))
            if matches!(refusal.code, code::NO_NODE | code::BAD_VERSION) =>
        {
            Ok(false)
        }
        Err(fail) => Err(hall.error(fail)),
    }
}
