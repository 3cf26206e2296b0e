//! Forgets names that were not used for long.

use std::time::Duration;

use leasehold_core::{Cleaned, Ended, Page, ResourceName, Result, Token};

use crate::desk::Desk;
use crate::entry::{column, span_column};
use crate::error::Step;
use crate::list::names;
use crate::store::SqliteStore;
use crate::tx::Tx;

/// How many names one transaction looks at: others get their turn in between.
const BATCH: u32 = 64;

pub(crate) async fn clean(
    store: &SqliteStore,
    keep: Duration,
    page: &Page,
    dry: bool,
) -> Result<Cleaned> {
    if !dry {
        store.hub().sweep();
    }
    let page = Page { limit: page.limit.min(BATCH), ..page.clone() };
    let (_, cleaned) = store.decide(|tx| step(tx, keep, &page, dry)).await?;
    Ok(cleaned)
}

fn step(tx: &mut Tx<'_>, keep: Duration, page: &Page, dry: bool) -> Step<Cleaned> {
    let all = names(tx, page)?;
    let full = all.len() == page.limit as usize;
    let next = if full { all.last().cloned() } else { None };
    let mut cleaned = Vec::new();
    for name in all {
        if clean_one(tx, &name, keep, dry)? {
            cleaned.push(name);
        }
    }
    Ok(Cleaned { names: cleaned, next })
}

fn clean_one(tx: &mut Tx<'_>, name: &ResourceName, keep: Duration, dry: bool) -> Step<bool> {
    let mut desk = Desk::open(tx, name)?;
    let now = desk.tx.now;
    let live = desk.has_live()?;
    let used = desk.last_use();
    let idle = used.saturating_add(span_column(keep)) <= column(now.as_nanos());
    let Some(id) = desk.row.id else { return Ok(false) };
    if live || !idle || has_record(desk.tx, id)? {
        return Ok(false);
    }
    if dry {
        return Ok(true);
    }
    // What has run out and was not looked at since stays dead, and so does what was released.
    desk.expire()?;
    for (claim, until) in desk.row.released(now) {
        desk.bury_deep(claim, Ended::Released, until)?;
    }
    let token = desk.row.token.map_or(0, Token::get);
    let db = desk.tx.db;
    // Whoever takes this name anew mints above all that it ever had.
    db.prepare_cached(include_str!("clean.sql"))?.execute([column(token + 1)])?;
    db.prepare_cached("DELETE FROM claim WHERE resource = ?1")?.execute([id])?;
    db.prepare_cached("DELETE FROM record WHERE resource = ?1")?.execute([id])?;
    db.prepare_cached("DELETE FROM resource WHERE id = ?1")?.execute([id])?;
    Ok(true)
}

fn has_record(tx: &Tx<'_>, id: i64) -> Step<bool> {
    let mut select =
        tx.db.prepare_cached("SELECT 1 FROM record WHERE resource = ?1 AND until > ?2")?;
    Ok(select.exists((id, column(tx.now.as_nanos())))?)
}
