//! Claims that must leave the store, each until it is known to have left or its term has cleaned
//! it up.

use alloc::vec::Vec;
use core::time::Duration;

use super::input::{CallId, Effect};
use crate::answer::Left;
use crate::backoff::Backoff;
use crate::claim::ClaimRef;
use crate::error::Result;
use crate::time::Moment;

/// The leaves that a machine still has to see through.
#[derive(Debug)]
pub(crate) struct Withdrawals {
    pending: Vec<Withdrawal>,
    seed: u64,
}

#[derive(Debug)]
struct Withdrawal {
    claim: ClaimRef,
    backoff: Backoff,
    in_flight: Option<CallId>,
    due: Moment,
    /// After this the store has ended the claim by itself.
    until: Moment,
}

impl Withdrawals {
    pub(crate) fn new(seed: u64) -> Withdrawals {
        Withdrawals { pending: Vec::new(), seed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Sees out a granted claim, which at the latest ends with its term.
    pub(crate) fn push(&mut self, claim: ClaimRef, now: Moment) {
        let until = now + claim.term * 2;
        self.push_until(claim, now, until);
    }

    /// Sees out a claim that does not end by itself before `until`.
    pub(crate) fn push_until(&mut self, claim: ClaimRef, now: Moment, until: Moment) {
        self.seed = self.seed.wrapping_add(1);
        let first = Duration::from_millis(50);
        let backoff = Backoff::new(first, Duration::from_secs(5), self.seed);
        self.pending.push(Withdrawal { claim, backoff, in_flight: None, due: now, until });
    }

    pub(crate) fn poll_timeout(&self) -> Option<Moment> {
        self.pending.iter().filter(|w| w.in_flight.is_none()).map(|w| w.due).min()
    }

    pub(crate) fn poll_effect(&mut self, now: Moment, calls: &mut u64) -> Option<Effect> {
        self.pending.retain(|w| w.in_flight.is_some() || w.until > now);
        let next = self.pending.iter_mut().find(|w| w.in_flight.is_none() && w.due <= now)?;
        *calls += 1;
        let call = CallId(*calls);
        next.in_flight = Some(call);
        Some(Effect::Leave { call, claim: next.claim.clone() })
    }

    /// Whether the answer was to one of these.
    pub(crate) fn on_left(&mut self, now: Moment, call: CallId, result: Result<Left>) -> bool {
        let Some(index) = self.pending.iter().position(|w| w.in_flight == Some(call)) else {
            return false;
        };
        let pending = &mut self.pending[index];
        match result {
            Err(error) if error.kind().is_transient() => {
                pending.in_flight = None;
                pending.due = now + pending.backoff.next_wait();
            }
            // Gone, released, or a refusal that will not change.
            Ok(_) | Err(_) => drop(self.pending.swap_remove(index)),
        }
        true
    }
}
