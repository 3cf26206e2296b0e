//! Keeps a small record with a resource.

use std::time::Duration;

use leasehold_core::{ClaimRef, Ended, Error, ErrorKind, Record, Result, Written};

use crate::desk::Desk;
use crate::entry::column;
use crate::error::{DOING, Step};
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn write(
    store: &SqliteStore,
    claim: &ClaimRef,
    value: &[u8],
    keep: Duration,
) -> Result<Written> {
    let on = |e: Error| e.on(&claim.resource);
    if value.len() > Record::VALUE_MAX {
        let (len, max) = (value.len(), Record::VALUE_MAX);
        let detail = format!("the value has {len} bytes: want at most {max}");
        return Err(on(Error::new(ErrorKind::Usage, DOING, detail)));
    }
    let (_, written) = store.decide(|tx| step(tx, claim, value, keep)).await.map_err(on)?;
    Ok(written)
}

fn step(tx: &mut Tx<'_>, claim: &ClaimRef, value: &[u8], keep: Duration) -> Step<Written> {
    let mut desk = Desk::open(tx, &claim.resource)?;
    desk.bury_if_dead(claim.id)?;
    desk.settle(None)?;
    let written = decide(&desk, claim, value, keep)?;
    desk.close()?;
    Ok(written)
}

fn decide(desk: &Desk<'_, '_>, claim: &ClaimRef, value: &[u8], keep: Duration) -> Step<Written> {
    let entry = desk.granted.iter().find(|e| e.id == claim.id);
    let Some(held) = entry.and_then(|e| e.held.as_ref()) else {
        return Ok(Written::Gone(desk.gone(claim.id)?));
    };
    if held.broken {
        return Ok(Written::Gone(Ended::Broken));
    }
    let until = column((desk.tx.now + keep).as_nanos());
    let keep_us = u64::try_from(keep.as_micros()).unwrap_or(u64::MAX);
    let until_us = column(desk.tx.wall_us.saturating_add(keep_us));
    let mut write = desk.tx.db.prepare_cached(include_str!("write.sql"))?;
    write.execute((desk.row.id, value, column(held.token.get()), until, until_us))?;
    Ok(Written::Stored)
}
