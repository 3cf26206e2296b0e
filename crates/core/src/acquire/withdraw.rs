//! Claims that must leave the store, each until it is known to have left or its term has cleaned
//! it up.

use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use super::input::{CallId, Effect};
use crate::answer::Left;
use crate::backoff::Backoff;
use crate::claim::{ClaimId, ClaimRef};
use crate::error::Result;
use crate::time::Moment;

/// The most leaves of one machine in flight.
const IN_FLIGHT_MAX: usize = 64;

/// The leaves that a machine still has to see through.
#[derive(Debug)]
pub(crate) struct Withdrawals {
    pending: BTreeMap<ClaimId, Withdrawal>,
    /// Those that are not in flight, by when they are sent.
    due: BTreeSet<(Moment, ClaimId)>,
    in_flight: BTreeMap<CallId, ClaimId>,
    seed: u64,
}

#[derive(Debug)]
struct Withdrawal {
    claim: ClaimRef,
    backoff: Backoff,
    /// When it is sent; `None` while it is in flight.
    due: Option<Moment>,
    /// After this the store has ended the claim by itself.
    until: Moment,
}

impl Withdrawals {
    pub(crate) fn new(seed: u64) -> Withdrawals {
        let (pending, due, in_flight) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Withdrawals { pending, due, in_flight, seed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Sees out a granted claim from `due` on; at the latest it ends with its term.
    pub(crate) fn push(&mut self, claim: ClaimRef, due: Moment) {
        let until = due + claim.term + claim.term;
        self.push_until(claim, due, until);
    }

    /// Sees out a claim that does not end by itself before `until`.
    pub(crate) fn push_until(&mut self, claim: ClaimRef, due: Moment, until: Moment) {
        let id = claim.id;
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.claim.enter_unanswered |= claim.enter_unanswered;
            pending.until = pending.until.max(until);
            self.hasten(due, id);
            return;
        }
        self.seed = self.seed.wrapping_add(1);
        let first = Duration::from_millis(50);
        let backoff = Backoff::new(first, Duration::from_secs(5), self.seed);
        self.pending.insert(id, Withdrawal { claim, backoff, due: Some(due), until });
        self.due.insert((due, id));
    }

    /// Sends a pending leave at `due` if it was to be sent later.
    pub(crate) fn hasten(&mut self, due: Moment, id: ClaimId) {
        if let Some(pending) = self.pending.get_mut(&id)
            && let Some(later) = pending.due
            && later > due
        {
            self.due.remove(&(later, id));
            self.due.insert((due, id));
            pending.due = Some(due);
        }
    }

    /// As [`Withdrawals::hasten`], for all.
    pub(crate) fn hasten_all(&mut self, due: Moment) {
        let later: BTreeSet<_> = self.due.split_off(&(due, ClaimId::from_bits(0)));
        for (_, id) in later {
            self.due.insert((due, id));
            if let Some(pending) = self.pending.get_mut(&id) {
                pending.due = Some(due);
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Moment> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            return None;
        }
        self.due.first().map(|(due, _)| *due)
    }

    pub(crate) fn poll_effect(&mut self, now: Moment, calls: &mut u64) -> Option<Effect> {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            let (_, id) = self.due.pop_first()?;
            let pending = self.pending.get_mut(&id)?;
            if pending.until <= now {
                self.pending.remove(&id);
                continue;
            }
            *calls += 1;
            let call = CallId(*calls);
            pending.due = None;
            self.in_flight.insert(call, id);
            return Some(Effect::Leave { call, claim: pending.claim.clone() });
        }
        None
    }

    /// Whether the answer was to one of these.
    pub(crate) fn on_left(&mut self, now: Moment, call: CallId, result: Result<Left>) -> bool {
        let Some(id) = self.in_flight.remove(&call) else { return false };
        match (result, self.pending.get_mut(&id)) {
            (Err(error), Some(pending)) if error.kind().is_transient() => {
                let due = (now + pending.backoff.next_wait()).min(pending.until);
                pending.due = Some(due);
                self.due.insert((due, id));
            }
            // Gone, released, or a refusal that will not change.
            _ => drop(self.pending.remove(&id)),
        }
        true
    }
}
