//! Renews grants and keeps places.

use std::time::Duration;

use leasehold_core::{ClaimRef, Ended, Error, ErrorKind, Life, Moment, Renewed, Result};

use crate::desk::Desk;
use crate::enter::waiting;
use crate::error::Step;
use crate::live::Alive;
use crate::store::SqliteStore;
use crate::tx::Tx;

/// How many claims one transaction renews: others get their turn in between.
const BATCH: usize = 128;

pub(crate) async fn renew(store: &SqliteStore, claims: &[ClaimRef]) -> Vec<Renewed> {
    let mut answers = Vec::with_capacity(claims.len());
    for batch in claims.chunks(BATCH) {
        match renew_together(store, batch).await {
            Ok((sent, renewed)) => answers.extend(renewed.into_iter().map(|r| told(sent, r))),
            // One sick row must not cost the others their leases.
            Err(error) if batch.len() > 1 && error.kind() == ErrorKind::Corrupt => {
                for claim in batch {
                    answers.push(renew_alone(store, claim).await);
                }
            }
            Err(error) => answers.extend(batch.iter().map(|claim| failed(&error, claim))),
        }
    }
    for (claim, answer) in claims.iter().zip(&answers) {
        match answer {
            Renewed::Waiting(_) => {
                // Without a thread the waiter still looks by itself.
                let _ = store.hub().ensure_thread();
            }
            Renewed::Unknown(_) => {}
            _ => store.hub().forget(claim.id),
        }
    }
    answers
}

async fn renew_alone(store: &SqliteStore, claim: &ClaimRef) -> Renewed {
    match renew_together(store, std::slice::from_ref(claim)).await {
        Ok((sent, mut renewed)) => match renewed.pop() {
            Some(renewed) => told(sent, renewed),
            None => Renewed::Gone(Ended::Unknown),
        },
        Err(error) => failed(&error, claim),
    }
}

/// Of a database that was removed or replaced this says so, and its leases are lost: others may
/// hold the lock by the one that is there now.
fn failed(error: &Error, claim: &ClaimRef) -> Renewed {
    Renewed::Unknown(error.clone().on(&claim.resource))
}

fn told(sent: Moment, renewed: Renewed<Duration>) -> Renewed {
    renewed.map_until(|left| SqliteStore::believed(sent, left))
}

async fn renew_together(
    store: &SqliteStore,
    claims: &[ClaimRef],
) -> Result<(Moment, Vec<Renewed<Duration>>)> {
    store.decide(|tx| claims.iter().map(|claim| step(tx, claim)).collect()).await
}

fn step(tx: &mut Tx<'_>, claim: &ClaimRef) -> Step<Renewed<Duration>> {
    if let Err(error) = SqliteStore::check_term(&claim.resource, claim.term) {
        return Ok(Renewed::Unknown(error));
    }
    let mut desk = Desk::open(tx, &claim.resource)?;
    let answer = decide(&mut desk, claim)?;
    desk.close()?;
    Ok(answer)
}

fn decide(desk: &mut Desk<'_, '_>, claim: &ClaimRef) -> Step<Renewed<Duration>> {
    let own = desk.tx.live.home();
    // One that has passed to another process lives on with it, if it lived until now.
    if let Some(entry) = desk.granted.iter().find(|e| e.id == claim.id) {
        let (home, life) = (entry.home, entry.life);
        if life == Life::Process && desk.tx.probe(&home) == Alive::No {
            desk.end(claim.id, Ended::Died)?;
        }
    }
    desk.settle(Some(claim.id))?;
    let Some(mut entry) = desk.find(claim.id)? else {
        return Ok(Renewed::Gone(desk.gone(claim.id)?));
    };
    if let (Some(named), Some(held)) = (claim.token, &entry.held)
        && named != held.token
    {
        return Ok(Renewed::Gone(desk.gone(claim.id)?));
    }
    let before = (entry.term, entry.life, entry.home);
    entry.term = claim.term;
    entry.life = claim.life;
    if claim.life == Life::Process || entry.held.is_none() {
        entry.home = own;
    }
    let now = desk.tx.now;
    let Some(held) = &mut entry.held else {
        if before != (entry.term, entry.life, entry.home) {
            desk.save_entry(&entry)?;
        }
        return Ok(Renewed::Waiting(waiting(desk, &entry)?));
    };
    if held.broken {
        desk.replace(entry)?;
        return Ok(Renewed::Gone(Ended::Broken));
    }
    held.until = held.until.max(now + claim.term);
    let left = held.until.since(now);
    let answer = match (claim.token, entry.grant(now)) {
        (None, Some(grant)) => Renewed::Granted(grant),
        _ => Renewed::Alive { until: left },
    };
    desk.replace(entry)?;
    Ok(answer)
}
