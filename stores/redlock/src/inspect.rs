//! What a majority says stands on a resource.

use std::sync::Arc;

use leasehold_core::{
    Ended, Error, Queue, QueueEntry, QueueState, ResourceName, Result, Store, Token,
};

use crate::core::{Core, most};

pub(crate) async fn inspect(core: Arc<Core>, name: ResourceName) -> Result<Queue> {
    let mut asked = core.ask(core.all(), core.patient(), |_, store| {
        let name = name.clone();
        async move { store.inspect(&name).await }
    });
    let mut queues: Vec<Queue> = Vec::new();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(queue) if said.counts => queues.push(queue),
            Ok(_) => {}
            Err(error) => failed.push((said.at, error)),
        }
    }
    if queues.len() < core.majority() {
        return Err(core.too_few(&failed, queues.len()));
    }
    Ok(merged(&queues, core.majority(), core.members.len() - queues.len()))
}

fn merged(queues: &[Queue], majority: usize, missing: usize) -> Queue {
    let mut entries: Vec<QueueEntry> = Vec::new();
    for entry in queues.iter().flat_map(|queue| &queue.entries) {
        if entries.iter().any(|other| is_same(other, entry)) {
            continue;
        }
        let all = || queues.iter().flat_map(|q| &q.entries).filter(|other| is_same(other, entry));
        let count = all().count();
        // Where members are missing it may hold at some of those.
        if count >= majority || (count + missing >= majority && count * 2 > queues.len()) {
            let token = most(all().filter_map(token)).map(|(token, _)| token);
            let agreed = all().find(|other| self::token(other) == token);
            let is_broken =
                all().any(|e| matches!(e.state, QueueState::Granted { broken: true, .. }));
            let mut entry = agreed.unwrap_or(entry).clone();
            if let QueueState::Granted { broken, .. } = &mut entry.state {
                *broken = is_broken;
            }
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.entered_ago));
    let last = queues.iter().filter(|queue| queue.last_end.is_some());
    let last = last.min_by_key(|queue| queue.last_end_ago);
    let last_token = most(queues.iter().map(|queue| queue.last_token));
    let last_end: Option<Ended> = last.and_then(|queue| queue.last_end);
    Queue {
        kind: entries.first().map(|entry| entry.mode.kind()),
        last_token: last_token.filter(|(_, n)| *n >= majority).and_then(|(token, _)| token),
        last_end,
        last_end_ago: last.and_then(|queue| queue.last_end_ago),
        entries,
    }
}

fn is_same(a: &QueueEntry, b: &QueueEntry) -> bool {
    a.claim == b.claim && a.holder == b.holder
}

fn token(entry: &QueueEntry) -> Option<Token> {
    match entry.state {
        QueueState::Granted { token, .. } => Some(token),
        QueueState::Waiting { .. } => None,
    }
}
