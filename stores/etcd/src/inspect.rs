//! Looking, for people and tests: also at what foreign clients have put there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, Holder, HolderId, Life, Queue, QueueEntry, QueueState, ResourceName, Result, Slots,
    Ticket, Token,
};

use crate::look::look;
use crate::mirror::{Entry, Mirror};
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::value::ago;

/// Of how many holders the terms are asked for.
const TERMS_MAX: usize = 64;

pub(crate) async fn inspect(inner: Arc<Inner>, rpc: Rpc, name: ResourceName) -> Result<Queue> {
    let keys = inner.layout.keys(&name)?;
    let mirror = look(&inner, &rpc, &keys).await?;
    let mut left: HashMap<i64, Duration> = HashMap::new();
    let holders = mirror.queue().filter(|(_, admitted)| *admitted).take(TERMS_MAX);
    for lease in holders.map(|(entry, _)| entry.lease).filter(|lease| *lease != 0) {
        if let std::collections::hash_map::Entry::Vacant(place) = left.entry(lease) {
            let belief = inner.leases.look(&rpc, lease).await?;
            place.insert(belief.map(|belief| belief.ttl).unwrap_or_default());
        }
    }
    Ok(queue(&mirror, &left))
}

fn queue(mirror: &Mirror, left: &HashMap<i64, Duration>) -> Queue {
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    let mut newest: Option<Token> = mirror.out().and_then(|end| end.token());
    for (entry, admitted) in mirror.queue() {
        if entry.holds(admitted) {
            newest = newest.max(entry.token().filter(|_| entry.ours.is_some()));
            holders.push(shown(entry, held(mirror, entry, left)));
        } else {
            let ticket = Ticket(u64::try_from(entry.create).unwrap_or_default());
            waiters.push(shown(entry, QueueState::Waiting { ticket }));
        }
    }
    let kind = mirror.kind(None).or_else(|| mirror.head().map(|head| head.mode().kind()));
    holders.append(&mut waiters);
    Queue {
        kind,
        entries: holders,
        last_token: newest,
        last_end: mirror.last_end(),
        last_end_ago: mirror.last_end_ago(),
    }
}

fn held(mirror: &Mirror, entry: &Entry, left: &HashMap<i64, Duration>) -> QueueState {
    let granted = entry.contender().and_then(|contender| contender.granted.as_ref());
    let token = entry.token().or_else(|| Token::new(1)).unwrap_or(Token::MAX);
    QueueState::Granted {
        token,
        slots: granted.map_or(Slots::default(), |granted| granted.slots.clone()),
        held_for: granted.map(|granted| ago(granted.since_us)).unwrap_or_default(),
        // A stray key without a lease never ends.
        left: if entry.lease == 0 {
            Duration::MAX
        } else {
            left.get(&entry.lease).copied().unwrap_or_default()
        },
        broken: entry.claim().is_some_and(|claim| mirror.is_broken(claim)),
    }
}

fn shown(entry: &Entry, state: QueueState) -> QueueEntry {
    // A foreign key has no claim id: the revision of its making stands for it.
    let bits = u128::try_from(entry.create).unwrap_or_default();
    let claim = entry.claim().unwrap_or(ClaimId::from_bits(bits));
    let holder = match entry.contender() {
        Some(contender) => contender.holder.clone(),
        None => Holder::new(HolderId::from_bits(bits), &entry.label()),
    };
    QueueEntry {
        claim,
        holder,
        mode: entry.mode(),
        life: entry.contender().map_or(Life::Process, |contender| contender.life),
        entered_ago: entry.contender().map(|c| ago(c.entered_us)).unwrap_or_default(),
        state,
    }
}
