//! Showing a queue, foreign contenders included.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, Holder, HolderId, Life, Moment, Queue, QueueEntry, QueueState, ResourceName, Result,
    Ticket, Token,
};

use crate::card::{Card, Memory};
use crate::hall::{Hall, Known, children, data, maybe};
use crate::look::{describe, token_of};
use crate::names::Contender;
use crate::queue::{self, Line};
use crate::wire::{Fail, Op, Stat};

/// The most contenders whose data is read.
const SHOWN_MAX: usize = 2_000;

/// A queue with what its contenders say of themselves.
pub(crate) struct Sight {
    pub(crate) line: Line,
    /// The data of each contender; of those who left meanwhile there is none.
    pub(crate) cards: Vec<Option<(Vec<u8>, Stat)>>,
    pub(crate) memory: Option<(Memory, Stat)>,
}

pub(crate) async fn look(hall: &Hall, resource: &ResourceName) -> Result<(u64, Sight)> {
    let now = hall.session().await?;
    let paths = hall.paths(resource)?;
    let call = |op: &Op| hall.wire.call(now.generation, op);
    let sync = call(&Op::Sync { path: paths.memory.clone() });
    let names = call(&Op::Children { path: paths.queue.clone(), watch: false });
    let memory = call(&Op::Get { path: paths.memory.clone(), watch: false });
    let failed = |fail| hall.error(fail);
    sync.answer().await.result.map_err(failed)?;
    let names = maybe(children(names.answer().await.result)).map_err(failed)?.unwrap_or_default();
    let memory = maybe(data(memory.answer().await.result)).map_err(failed)?;
    let memory = memory.and_then(|(found, stat)| Some((Memory::read(&found)?, stat)));
    let line = queue::read(hall, now.generation, resource, &paths, &names).await?;
    let calls: Vec<_> = line
        .contenders
        .iter()
        .take(SHOWN_MAX)
        .map(|c| call(&Op::Get { path: format!("{}/{}", paths.queue, c.name), watch: false }))
        .collect();
    let mut cards = Vec::with_capacity(calls.len());
    for card in calls {
        cards.push(maybe(data(card.answer().await.result)).map_err(failed)?);
    }
    Ok((now.generation, Sight { line, cards, memory }))
}

pub(crate) async fn inspect(hall: &Arc<Hall>, resource: &ResourceName) -> Result<Queue> {
    let (generation, sight) = look(hall, resource).await?;
    let time = hall.ask_time(generation).await?;
    let ago = |ms: i64| Duration::from_millis(u64::try_from(time.saturating_sub(ms)).unwrap_or(0));
    let mut holders = Vec::new();
    let mut waiters = Vec::new();
    let mut last_token = sight.memory.as_ref().and_then(|(memory, _)| memory.token);
    for (n, contender) in sight.line.contenders.iter().enumerate() {
        let Some(Some((found, stat))) = sight.cards.get(n) else { continue };
        let token = token_of(stat).map_err(|fail: Fail| hall.error(fail))?;
        let holds = sight.line.admitted.get(n).copied().unwrap_or(false);
        let entry = entry(hall, contender, found, token, holds, ago(stat.ctime));
        if holds {
            last_token = last_token.max(Some(token));
            holders.push(entry);
        } else {
            waiters.push(entry);
        }
    }
    Ok(Queue {
        kind: sight.line.contenders.first().map(|c| c.mode.kind()),
        entries: holders.into_iter().chain(waiters).collect(),
        last_token,
        last_end: sight.memory.as_ref().map(|(memory, _)| memory.how),
        last_end_ago: sight.memory.map(|(_, stat)| ago(stat.mtime)),
    })
}

fn entry(
    hall: &Hall,
    contender: &Contender,
    found: &[u8],
    token: Token,
    holds: bool,
    entered_ago: Duration,
) -> QueueEntry {
    let card = Card::read(found);
    let foreign = HolderId::from_bits(token.get().into());
    let (label, term) = describe(found);
    let holder = match &card {
        Some(card) => card.holder.clone(),
        None => Holder::new(foreign, &label),
    };
    let claim = card.as_ref().map(|card| card.claim).or(contender.claim);
    let claim = claim.unwrap_or(ClaimId::from_bits(token.get().into()));
    let state = if holds {
        let known = left(hall, claim);
        QueueState::Granted {
            token,
            slots: card.as_ref().map(|card| card.slots.clone()).unwrap_or_default(),
            held_for: known.map_or(entered_ago, |(since, _)| hall.now().since(since)),
            left: known.map_or(term, |(_, left)| left),
            broken: card.map_or(found == crate::break_::REVOKE, |card| card.broken),
        }
    } else {
        QueueState::Waiting { ticket: Ticket(token.get()) }
    };
    QueueEntry { claim, holder, mode: contender.mode, life: Life::Process, entered_ago, state }
}

/// Since when a claim of this client holds, and what is left of its term.
fn left(hall: &Hall, claim: ClaimId) -> Option<(Moment, Duration)> {
    let Known::Sits(seat) = hall.find(claim) else { return None };
    let facts = seat.facts();
    let since = facts.held()?.since;
    let ends = facts.holds.iter().map(|hold| hold.ends).max()?;
    Some((since, ends.since(hall.now())))
}
