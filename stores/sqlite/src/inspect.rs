//! What stands on a resource, for people and tests.

use leasehold_core::{
    Ended, Error, Life, Moment, Queue, QueueEntry, QueueState, ResourceName, Result,
};

use crate::entry::{Entry, Reader};
use crate::error::Step;
use crate::live::Alive;
use crate::resource::ResourceRow;
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn inspect(store: &SqliteStore, resource: &ResourceName) -> Result<Queue> {
    let on = |e: Error| e.on(resource);
    let (_, queue) = store.look(|tx| step(tx, resource)).await.map_err(on)?;
    Ok(queue)
}

fn step(tx: &mut Tx<'_>, resource: &ResourceName) -> Step<Queue> {
    let Some((row, holder)) = ResourceRow::load(tx.db, resource)? else {
        return Ok(Queue::default());
    };
    let mut all: Vec<Entry> = holder.into_iter().collect();
    let mut select = tx.db.prepare_cached(include_str!("claim_after.sql"))?;
    let mut rows = select.query((row.id, i64::MIN, i64::MIN))?;
    while let Some(found) = rows.next()? {
        all.push(Reader::new(found, 0, resource).entry()?);
    }
    let now = tx.now;
    // What has ended and was not touched since is told as ended.
    let (live, ended): (Vec<Entry>, Vec<Entry>) = all.into_iter().partition(|e| match &e.held {
        Some(held) => held.until > now && (e.life == Life::Term || tx.probe(&e.home) != Alive::No),
        None => tx.probe(&e.home) != Alive::No,
    });
    let last_end = last_end(row.end, &live, &ended, now);
    let all = live;
    let kind = all.first().map(|e| e.mode.kind());
    let (held, waiting): (Vec<Entry>, Vec<Entry>) = all.into_iter().partition(|e| e.held.is_some());
    Ok(Queue {
        kind,
        entries: held.into_iter().chain(waiting).map(|e| shown(e, now)).collect(),
        last_token: row.token,
        last_end: last_end.map(|(how, _)| how),
        last_end_ago: last_end.map(|(_, at)| now.since(at)),
    })
}

/// How the last grant to end has ended, when those that nobody has looked at since are counted.
fn last_end(
    noted: Option<(Ended, Moment)>,
    live: &[Entry],
    ended: &[Entry],
    now: Moment,
) -> Option<(Ended, Moment)> {
    let is_over = |e: &&Entry| !live.iter().any(|l| l.held.is_some() && l.order == e.order);
    let unseen = ended.iter().filter(is_over).filter_map(|e| {
        let held = e.held.as_ref()?;
        let (how, at) =
            if held.until > now { (Ended::Died, now) } else { (Ended::Expired, held.until) };
        Some((if held.broken { Ended::Broken } else { how }, at))
    });
    unseen.max_by_key(|(_, at)| *at).or(noted)
}

fn shown(entry: Entry, now: Moment) -> QueueEntry {
    QueueEntry {
        claim: entry.id,
        holder: entry.holder,
        mode: entry.mode,
        life: entry.life,
        entered_ago: now.since(entry.entered_at),
        state: match entry.held {
            None => QueueState::Waiting { ticket: entry.ticket },
            Some(held) => QueueState::Granted {
                token: held.token,
                slots: held.slots,
                held_for: now.since(held.since),
                left: held.until.since(now),
                broken: held.broken,
            },
        },
    }
}
