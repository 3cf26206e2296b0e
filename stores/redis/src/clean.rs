//! Forgets names that nobody has used for long.

use std::time::Duration;

use leasehold_core::{Cleaned, Page, ResourceName, Result};

use crate::link::Lane;
use crate::list;
use crate::scripts::CLEAN;
use crate::store::{RedisStore, TERM_MAX, micros};

pub(crate) async fn clean(
    store: &RedisStore,
    keep: Duration,
    page: &Page,
    dry: bool,
) -> Result<Cleaned> {
    let names = list::list(store, page).await?;
    let full = names.len() == usize::try_from(page.limit).unwrap_or(usize::MAX);
    let next = if full { names.last().cloned() } else { None };
    let mut cleaned = Vec::new();
    for name in names {
        if clean_one(store, keep, &name, dry).await.map_err(|e| e.on(&name))? {
            cleaned.push(name);
        }
    }
    Ok(Cleaned { names: cleaned, next })
}

async fn clean_one(
    store: &RedisStore,
    keep: Duration,
    name: &ResourceName,
    dry: bool,
) -> Result<bool> {
    let keys = store.keys(name)?;
    let [layout, publish, spans] = store.common();
    let keep = micros(keep.min(TERM_MAX));
    let args = [layout, publish, spans, &keep, if dry { b"1" } else { b"0" }];
    let mut told = store.tell(Lane::Slow, &CLEAN, &keys.first(8), &args).await?;
    Ok(told.number()? == 1)
}
