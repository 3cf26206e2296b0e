//! Ends a claim and hands over.

use leasehold_core::{ClaimRef, Ended, Error, Left, Result};

use crate::desk::Desk;
use crate::error::Step;
use crate::message::Word;
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn leave(store: &SqliteStore, claim: &ClaimRef) -> Result<Left> {
    let on = |e: Error| e.on(&claim.resource);
    let (_, left) = store.decide(|tx| step(tx, claim)).await.map_err(on)?;
    store.hub().forget(claim.id);
    Ok(left)
}

fn step(tx: &mut Tx<'_>, claim: &ClaimRef) -> Step<Left> {
    let mut desk = Desk::open(tx, &claim.resource)?;
    let answer = decide(&mut desk, claim)?;
    desk.close()?;
    Ok(answer)
}

fn decide(desk: &mut Desk<'_, '_>, claim: &ClaimRef) -> Step<Left> {
    desk.expire()?;
    desk.bury_if_dead(claim.id)?;
    if let Some(entry) = desk.end(claim.id, Ended::Released)? {
        if claim.enter_unanswered {
            // Barred however many are released after it.
            let until = desk.tx.now + entry.term;
            desk.bury_deep(claim.id, Ended::Released, until)?;
        }
        if entry.held.is_none()
            && let Some(behind) = desk.next_after((entry.order, entry.sub))?
        {
            // It has another neighbour now.
            desk.tx.words.push(Word::moved(&behind));
        }
        desk.settle(None)?;
        return Ok(Left::Released);
    }
    desk.settle(None)?;
    let grave = desk.grave(claim.id)?;
    if claim.enter_unanswered {
        // Barred for a term from now, also when it had ended some time ago.
        let until = desk.tx.now + claim.term;
        desk.bury_deep(claim.id, grave.unwrap_or(Ended::Released), until)?;
    }
    Ok(Left::Gone(grave.unwrap_or(Ended::Unknown)))
}
