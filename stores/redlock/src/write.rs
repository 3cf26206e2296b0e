//! Keeps a record at a majority.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimRef, Ended, Error, Result, Store, Written};

use crate::core::{Core, worst};

pub(crate) async fn write(
    core: Arc<Core>,
    claim: ClaimRef,
    value: Arc<[u8]>,
    keep: Duration,
) -> Result<Written> {
    let mut asked = core.ask(core.all(), core.within(claim.term), |_, store| {
        let (claim, value) = (claim.clone(), Arc::clone(&value));
        async move { store.write(&claim, &value, keep).await }
    });
    let mut stored = 0;
    let mut gone: Vec<Ended> = Vec::new();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    // All of them, so that the next write of the same grant finds no older one under way.
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(_) if !said.counts => {}
            Ok(Written::Stored) => stored += 1,
            Ok(Written::Gone(how)) => gone.push(how),
            Err(error) => failed.push((said.at, error)),
        }
    }
    if stored >= core.majority() {
        return Ok(Written::Stored);
    }
    if gone.len() > core.minority() {
        return Ok(Written::Gone(worst(gone).unwrap_or(Ended::Unknown)));
    }
    let refusal = failed.iter().find(|(_, error)| !error.kind().is_transient());
    match refusal {
        Some((_, refusal)) if failed.len() > core.minority() => Err(refusal.clone()),
        _ => Err(core.too_few(&failed, stored).maybe_applied()),
    }
}
