//! Cleaning: what is remembered of names that nobody has used for long.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Cleaned, Page, ResourceName, Result};

use crate::card::{Mark, Stored};
use crate::enter::get;
use crate::hall::{Hall, children, maybe};
use crate::names::{Paths, RECORD, SLOT};
use crate::wire::{Fail, Op, code};

pub(crate) async fn clean(
    hall: &Arc<Hall>,
    keep: Duration,
    page: &Page,
    dry: bool,
) -> Result<Cleaned> {
    let listed = crate::list::list(hall, page).await?;
    let full = listed.len() == page.limit as usize;
    let next = if full { listed.last().cloned() } else { None };
    let generation = hall.session().await?.generation;
    let time = hall.ask_time(generation).await?;
    let mut names = Vec::new();
    for name in listed {
        let paths = hall.paths(&name)?;
        let idle = idle(hall, generation, &paths, time, keep).await.map_err(|e| hall.error(e))?;
        let Some(ops) = idle else { continue };
        if dry || forget(hall, generation, &name, &paths, ops).await? {
            names.push(name);
        }
    }
    Ok(Cleaned { names, next })
}

/// What is to be removed of a name that is idle; `None` if it is not.
async fn idle(
    hall: &Hall,
    generation: u64,
    paths: &Paths,
    time: i64,
    keep: Duration,
) -> Result<Option<Vec<Op>>, Fail> {
    let call = |path: &String| {
        hall.wire.call(generation, &Op::Children { path: path.clone(), watch: false })
    };
    let (queue, marks) = (call(&paths.queue), call(&paths.memory));
    let queue = maybe(children(queue.answer().await.result))?;
    if queue.is_some_and(|names| !names.is_empty()) {
        return Ok(None);
    }
    let Some((_, stat)) = get(hall, generation, paths.memory.clone()).await? else {
        return Ok(None); // a foreign queue, which its container's end cleans
    };
    let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    if stat.mtime.saturating_add(keep_ms) > time {
        return Ok(None);
    }
    let mut ops = Vec::new();
    for mark in maybe(children(marks.answer().await.result))?.unwrap_or_default() {
        let path = format!("{}/{mark}", paths.memory);
        let Some((found, stat)) = get(hall, generation, path.clone()).await? else { continue };
        let until = if mark == RECORD {
            let keep = Stored::read(&found).map_or(Duration::ZERO, |stored| stored.keep);
            stat.mtime.saturating_add(i64::try_from(keep.as_millis()).unwrap_or(i64::MAX))
        } else if mark.starts_with(SLOT) {
            return Ok(None);
        } else if Mark::read(&found) == Mark::Stands {
            // A claim that died: it is the next holder's to be told of, for as long as names are.
            stat.mtime.saturating_add(keep_ms)
        } else {
            stat.mtime.saturating_add(keep_ms.max(HOUR_MS))
        };
        if until > time {
            return Ok(None);
        }
        ops.push(Op::Delete { path, version: stat.version });
    }
    ops.push(Op::Delete { path: paths.memory.clone(), version: stat.version });
    Ok(Some(ops))
}

/// An enter that is barred may arrive for so long.
const HOUR_MS: i64 = 3_600_000;

/// Whether it was removed: who came meanwhile keeps it.
async fn forget(
    hall: &Hall,
    generation: u64,
    name: &ResourceName,
    paths: &Paths,
    ops: Vec<Op>,
) -> Result<bool> {
    // The queue first: one that stands keeps its memory.
    let queue = Op::Delete { path: paths.queue.clone(), version: -1 };
    for op in [queue, Op::Multi(ops)] {
        match hall.ask(generation, &op).await.result {
            Ok(_) => {}
            Err(Fail::Refused(refusal)) => match refusal.code {
                code::NO_NODE if !matches!(op, Op::Multi(_)) => {}
                code::NO_NODE | code::NOT_EMPTY | code::BAD_VERSION => return Ok(false),
                _ => return Err(hall.error(Fail::Refused(refusal)).on(name)),
            },
            Err(fail) => return Err(hall.error(fail).on(name)),
        }
    }
    Ok(true)
}
