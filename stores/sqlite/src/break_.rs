//! An operator's force.

use leasehold_core::{Broken, ClaimId, Ended, Error, ResourceName, Result, Token};

use crate::desk::Desk;
use crate::error::Step;
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn break_(
    store: &SqliteStore,
    resource: &ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let on = |e: Error| e.on(resource);
    let (_, broken) = store.decide(|tx| step(tx, resource, expect, now)).await.map_err(on)?;
    Ok(broken)
}

fn step(
    tx: &mut Tx<'_>,
    resource: &ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Step<Broken> {
    let mut desk = Desk::open(tx, resource)?;
    desk.expire()?; // first, so that what ran out is told so, and when
    desk.bury_dead_holders()?;
    desk.settle(None)?;
    let broken = decide(&mut desk, expect, now)?;
    desk.close()?;
    Ok(broken)
}

fn decide(desk: &mut Desk<'_, '_>, expect: Option<Token>, now: bool) -> Step<Broken> {
    let marked = desk.mark_broken(expect)?;
    if marked.is_empty() {
        return Ok(Broken::Nothing { held: tokens(desk.held_tokens()) });
    }
    if now {
        for (claim, _) in &marked {
            desk.end(*claim, Ended::Broken)?;
            desk.settle(None)?;
        }
    }
    Ok(Broken::Marked(tokens(marked.into_iter().map(|(_, token): (ClaimId, Token)| token))))
}

fn tokens(all: impl Iterator<Item = Token>) -> Vec<Token> {
    let mut all: Vec<Token> = all.collect();
    all.dedup();
    all
}
