//! The renewal machine: keeps grants alive, and ends belief in them in time.
//!
//! A synchronous machine like [`acquire`](crate::acquire): told what happened and when, it says
//! what to do. It holds every lease of a client. The rules it keeps (laws 2, 3, 8 and 9):
//!
//! - On every wake the ends of belief are looked at first; a late answer revives nothing.
//! - A renewal is due after a third of what is believed, earliest end first, batched per route; it
//!   is tried again within the term. No answer, or an unclear one, extends nothing.
//! - Several calls of one route may be in flight, each with a time limit of its own. Leases that
//!   were in a call that hung are asked for apart from the others and a few at a time, so that one
//!   sick claim does not hold up a healthy one.
//! - After two thirds without an answer the lease is at risk.
//! - A loss is told before anything is given away: the claim leaves when its owner says so
//!   ([`Renewal::hasten`]), or when its right has ended by itself.

mod input;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::acquire::CallId;
use crate::acquire::withdraw::Withdrawals;
use crate::answer::{Ended, Renewed};
use crate::backoff::Noise;
use crate::claim::{ClaimId, ClaimRef};
use crate::error::{Error, ErrorKind};
use crate::store::Route;
use crate::time::Moment;
use crate::validity::{renew_due, risk_due};

pub use input::{Effect, Input, Keep, Loss};

/// The most claims in one call.
const BATCH_MAX: usize = 1000;
/// The most calls in flight for one route.
const CALLS_PER_ROUTE_MAX: usize = 8;
/// The most calls in flight for one route with leases that were in a call that hung.
const SUSPECTS_PER_ROUTE_MAX: usize = 4;
/// How many parts the leases of a call that hung are asked for in.
const SPLIT: usize = 16;
/// How far ahead a batch looks for leases that are due soon.
const BATCH_AHEAD: Duration = Duration::from_millis(500);

/// The machine. See the [module's documentation](self).
#[derive(Debug)]
pub struct Renewal {
    leases: BTreeMap<ClaimId, Kept>,
    /// When to look at which lease next; one entry a lease.
    wakes: BTreeSet<(Moment, ClaimId)>,
    /// Due and not in flight, earliest end first.
    ready: BTreeMap<Lane, BTreeSet<(Moment, ClaimId)>>,
    calls: BTreeMap<CallId, Call>,
    calls_made: u64,
    effects: VecDeque<Effect>,
    withdrawals: Withdrawals,
    noise: Noise,
}

/// What is asked for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Lane {
    route: Route,
    /// The last call hung that its leases were in.
    is_suspect: bool,
}

impl Lane {
    fn calls_max(self) -> usize {
        if self.is_suspect { SUSPECTS_PER_ROUTE_MAX } else { CALLS_PER_ROUTE_MAX }
    }
}

/// How a lost claim leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Farewell {
    /// It is gone already.
    No,
    /// At once: it is not what was granted.
    Now,
    /// When the right has ended by itself, unless its owner is done earlier.
    AfterRight,
}

#[derive(Debug)]
struct Kept {
    claim: ClaimRef,
    route: Route,
    renewed: bool,
    /// The call was sent then that `until` is counted from.
    asked_at: Moment,
    until: Moment,
    renew_at: Moment,
    wake: Moment,
    at_risk: bool,
    in_flight: bool,
    /// Calls since the last clear answer that came to nothing.
    failures: u32,
    /// With how many it may share a call.
    batch_max: usize,
    /// It is to be asked for again whatever the call in flight says.
    again: bool,
}

#[derive(Debug)]
struct Call {
    lane: Lane,
    sent: Moment,
    within: Duration,
    claims: Vec<ClaimId>,
}

impl Kept {
    /// When something may have to be done about it.
    fn next_wake(&self) -> Moment {
        let risk = if self.renewed && !self.at_risk { self.risk_at() } else { Moment::NEVER };
        let renew = if self.renewed && !self.in_flight { self.renew_at } else { Moment::NEVER };
        self.until.min(risk).min(renew)
    }

    fn risk_at(&self) -> Moment {
        risk_due(self.asked_at, self.until)
    }

    fn is_due(&self, now: Moment) -> bool {
        self.renewed && !self.in_flight && self.renew_at <= now
    }

    /// For how long the last answer let it be believed: a first term may be much shorter than the
    /// claim's own.
    fn span(&self) -> Duration {
        self.until.since(self.asked_at)
    }

    fn lane(&self) -> Lane {
        Lane { route: self.route, is_suspect: self.batch_max < BATCH_MAX }
    }

    /// When the right has ended by itself for the slowest judge that belief allows for.
    fn right_ends(&self) -> Moment {
        self.until + self.span() / 7 + Duration::from_millis(5)
    }
}

impl Renewal {
    /// A machine without leases; `seed` is for jitter.
    pub fn new(seed: u64) -> Renewal {
        Renewal {
            leases: BTreeMap::new(),
            wakes: BTreeSet::new(),
            ready: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_made: 0,
            effects: VecDeque::new(),
            withdrawals: Withdrawals::new(seed),
            noise: Noise::seeded(!seed),
        }
    }

    /// Takes a lease into care.
    pub fn keep(&mut self, keep: Keep) {
        let Keep { claim, route, asked_at, until, renewed } = keep;
        let id = claim.id;
        self.forget(id);
        let renew_at = renew_due(asked_at, until);
        let mut kept = Kept {
            claim,
            route,
            renewed,
            asked_at,
            until,
            renew_at,
            wake: Moment::NEVER,
            at_risk: false,
            in_flight: false,
            failures: 0,
            batch_max: BATCH_MAX,
            again: false,
        };
        kept.wake = kept.next_wake();
        self.wakes.insert((kept.wake, id));
        self.leases.insert(id, kept);
    }

    /// Lets go of a lease that its owner releases; whether it was still held.
    ///
    /// Belief ends here. The owner sends the leave itself, or asks for it with
    /// [`Renewal::withdraw`].
    pub fn forget(&mut self, claim: ClaimId) -> bool {
        self.take(claim).is_some()
    }

    /// As [`Renewal::forget`], with the reference by which the claim leaves.
    pub fn take(&mut self, claim: ClaimId) -> Option<ClaimRef> {
        let kept = self.leases.remove(&claim)?;
        self.wakes.remove(&(kept.wake, claim));
        if let Some(ready) = self.ready.get_mut(&kept.lane()) {
            ready.remove(&(kept.until, claim));
        }
        Some(kept.claim)
    }

    /// Why a lease is lost, if that is known but [`Effect::Lost`] was not asked for yet.
    pub fn untold_loss(&self, claim: ClaimId) -> Option<Loss> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Lost { claim: lost, loss } if *lost == claim => Some(*loss),
            _ => None,
        })
    }

    /// Sees a claim out of the store in the background: tried again until it has left or its term
    /// has ended it.
    pub fn withdraw(&mut self, now: Moment, claim: ClaimRef) {
        self.withdrawals.push(claim, now);
    }

    /// The owner of a lost lease is done with it: if its claim is still to leave, it leaves now.
    pub fn hasten(&mut self, now: Moment, claim: ClaimId) {
        self.withdrawals.hasten(now, claim);
    }

    /// As [`Renewal::hasten`], for all.
    pub fn hasten_all(&mut self, now: Moment) {
        self.withdrawals.hasten_all(now);
    }

    /// Whether a call is in flight that names this claim, also if it was let go since.
    pub fn is_asked(&self, claim: ClaimId) -> bool {
        self.calls.values().any(|call| call.claims.contains(&claim))
    }

    /// How many leases are held.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether no lease is held.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether nothing is held, in flight or still to leave.
    pub fn is_idle(&self) -> bool {
        self.leases.is_empty() && self.calls.is_empty() && self.withdrawals.is_empty()
    }

    /// Until when a lease is believed, unless it was lost or let go.
    pub fn until(&self, claim: ClaimId) -> Option<Moment> {
        self.leases.get(&claim).map(|kept| kept.until)
    }

    /// The next moment at which [`Renewal::poll_effect`] has something to say unasked.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if !self.effects.is_empty() {
            return Some(Moment::START);
        }
        if self.sendable().is_some() {
            return Some(Moment::START);
        }
        let wake = self.wakes.first().map(|(at, _)| *at);
        [wake, self.withdrawals.poll_timeout()].into_iter().flatten().min()
    }

    /// What to do now. Call again until it says nothing.
    ///
    /// `now` is read before the effect is carried out: it is the send time from which belief is
    /// counted.
    pub fn poll_effect(&mut self, now: Moment) -> Option<Effect> {
        self.on_time(now);
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if let Some(effect) = self.send_batch(now) {
            return Some(effect);
        }
        match self.withdrawals.poll_effect(now, &mut self.calls_made)? {
            crate::acquire::Effect::Leave { call, claim } => Some(Effect::Leave { call, claim }),
            _ => None,
        }
    }

    /// Ends belief where it is time, then marks what is at risk and what is due.
    fn on_time(&mut self, now: Moment) {
        while let Some(&(wake, id)) = self.wakes.first() {
            if wake > now {
                return;
            }
            self.wakes.pop_first();
            let Some(kept) = self.leases.get_mut(&id) else { continue };
            if kept.until <= now {
                self.end_belief(now, id);
                continue;
            }
            if kept.renewed && !kept.at_risk && kept.risk_at() <= now {
                kept.at_risk = true;
                self.effects.push_back(Effect::AtRisk { claim: id });
            }
            if kept.is_due(now) {
                self.ready.entry(kept.lane()).or_default().insert((kept.until, id));
                kept.renew_at = Moment::NEVER;
            }
            kept.wake = kept.next_wake();
            self.wakes.insert((kept.wake, id));
        }
    }

    /// The time is up: belief ends, and the claim is seen out.
    fn end_belief(&mut self, now: Moment, id: ClaimId) {
        let Some(kept) = self.leases.get(&id) else { return };
        let asked = kept.in_flight || kept.failures > 0;
        let loss = if asked { Loss::Unreachable } else { Loss::Expired };
        self.lose(now, id, loss, Farewell::AfterRight);
    }

    fn lose(&mut self, now: Moment, id: ClaimId, loss: Loss, farewell: Farewell) {
        let Some(kept) = self.leases.get(&id) else { return };
        let right_ends = kept.right_ends().max(now);
        let claim = kept.claim.clone();
        self.forget(id);
        self.effects.push_back(Effect::Lost { claim: id, loss });
        match farewell {
            Farewell::No => {}
            Farewell::Now => self.withdrawals.push(claim, now),
            Farewell::AfterRight => self.withdrawals.push(claim, right_ends),
        }
    }

    /// A lane with something to ask for and room for a call.
    fn sendable(&self) -> Option<Lane> {
        let calls = |lane: Lane| self.calls.values().filter(|call| call.lane == lane).count();
        self.ready
            .iter()
            .find(|(lane, ready)| !ready.is_empty() && calls(**lane) < lane.calls_max())
            .map(|(lane, _)| *lane)
    }

    fn send_batch(&mut self, now: Moment) -> Option<Effect> {
        let lane = self.sendable()?;
        let mut ids = Vec::new();
        let mut room = BATCH_MAX;
        if let Some(ready) = self.ready.get_mut(&lane) {
            while let Some(&(_, id)) = ready.first() {
                room = room.min(self.leases.get(&id).map_or(BATCH_MAX, |kept| kept.batch_max));
                if ids.len() >= room {
                    break;
                }
                ready.pop_first();
                ids.push(id);
            }
            if ready.is_empty() {
                self.ready.remove(&lane);
            }
        }
        if !lane.is_suspect {
            self.add_due_soon(now, lane, &mut ids);
        }
        let mut claims = Vec::with_capacity(ids.len());
        let mut within = Duration::MAX;
        for id in &ids {
            let Some(kept) = self.leases.get_mut(id) else { continue };
            kept.in_flight = true;
            claims.push(kept.claim.clone());
            within = within.min(kept.claim.term / 4).min(kept.span() / 4);
        }
        for id in &ids {
            self.rewake(*id);
        }
        self.calls_made += 1;
        let call = CallId(self.calls_made);
        self.calls.insert(call, Call { lane, sent: now, within, claims: ids });
        Some(Effect::Renew { call, route: lane.route, claims, within })
    }

    /// Leases of the same route that are due within a sixtieth of their term travel along.
    fn add_due_soon(&mut self, now: Moment, lane: Lane, ids: &mut Vec<ClaimId>) {
        let soon = self.wakes.range(..=(now + BATCH_AHEAD, ClaimId::from_bits(u128::MAX)));
        for (_, id) in soon {
            if ids.len() >= BATCH_MAX {
                return;
            }
            let Some(kept) = self.leases.get(id) else { continue };
            if kept.lane() == lane && kept.is_due(now + kept.claim.term / 60) {
                ids.push(*id);
            }
        }
    }

    fn rewake(&mut self, id: ClaimId) {
        let Some(kept) = self.leases.get_mut(&id) else { return };
        self.wakes.remove(&(kept.wake, id));
        kept.wake = kept.next_wake();
        self.wakes.insert((kept.wake, id));
    }

    /// Tells the machine what happened.
    pub fn handle(&mut self, now: Moment, input: Input) {
        self.on_time(now);
        match input {
            Input::Renewed { call, renewed } => self.on_renewed(now, call, renewed),
            Input::Left { call, result } => {
                self.withdrawals.on_left(now, call, result);
            }
            Input::Lost { claim, loss } => self.lose(now, claim, loss, farewell(loss)),
            Input::Reverify => self.reverify(now),
        }
    }

    /// Everything is due at once: the store may have forgotten.
    fn reverify(&mut self, now: Moment) {
        let ids: Vec<ClaimId> = self.leases.keys().copied().collect();
        for id in ids {
            let Some(kept) = self.leases.get_mut(&id) else { continue };
            if kept.in_flight {
                kept.again = true; // what answers may be what has forgotten
            } else if kept.renewed && kept.renew_at != Moment::NEVER {
                kept.renew_at = now;
                self.rewake(id);
            }
        }
    }

    fn on_renewed(&mut self, now: Moment, call: CallId, renewed: Vec<Renewed>) {
        let Some(Call { sent, within, claims, .. }) = self.calls.remove(&call) else { return };
        let hung = now.since(sent) >= within;
        let batch_max = if hung { (claims.len() / SPLIT).max(1) } else { BATCH_MAX };
        let answers = renewed.into_iter().map(Some).chain(core::iter::repeat_with(|| None));
        for (id, answer) in claims.into_iter().zip(answers) {
            let Some(kept) = self.leases.get_mut(&id) else { continue };
            kept.in_flight = false;
            kept.batch_max = kept.batch_max.min(batch_max);
            let answer = answer.unwrap_or_else(|| {
                let detail = "the store answered for fewer claims than were asked";
                Renewed::Unknown(Error::new(ErrorKind::Bug, "renew a lease", detail))
            });
            self.on_answer(now, sent, id, answer);
            if let Some(kept) = self.leases.get_mut(&id)
                && core::mem::take(&mut kept.again)
            {
                kept.renew_at = now;
            }
            self.rewake(id);
        }
    }

    fn on_answer(&mut self, now: Moment, sent: Moment, id: ClaimId, answer: Renewed) {
        match answer {
            Renewed::Alive { until } => self.on_alive(now, sent, id, until),
            Renewed::Granted(grant) => {
                let ours = self.leases.get(&id).and_then(|kept| kept.claim.token);
                if ours == Some(grant.token) {
                    self.on_alive(now, sent, id, grant.until);
                } else {
                    self.lose(now, id, Loss::Stolen, Farewell::Now);
                }
            }
            Renewed::Waiting(_) => self.lose(now, id, Loss::Stolen, Farewell::Now),
            Renewed::Gone(Ended::Broken) => {
                self.lose(now, id, Loss::Broken, farewell(Loss::Broken));
            }
            Renewed::Gone(how) => self.lose(now, id, Loss::from(how), Farewell::No),
            Renewed::Unknown(error) if error.kind() == ErrorKind::Replaced => {
                self.lose(now, id, Loss::StoreReplaced, Farewell::No);
            }
            Renewed::Unknown(error) => self.on_unknown(now, id, &error),
        }
    }

    fn on_alive(&mut self, now: Moment, sent: Moment, id: ClaimId, until: Moment) {
        let Some(kept) = self.leases.get_mut(&id) else { return };
        if until <= now {
            // It came too late to help; what was believed before still is, until it ends.
            kept.failures = kept.failures.saturating_add(1);
            kept.renew_at = now + kept.span() / 24;
            return;
        }
        kept.failures = 0;
        kept.batch_max = BATCH_MAX;
        kept.at_risk = false;
        kept.until = kept.until.max(until);
        kept.asked_at = sent;
        kept.renew_at = renew_due(sent, until).max(now);
        self.effects.push_back(Effect::Kept { claim: id, until: kept.until });
    }

    /// Tried again in time: first after a twenty-fourth of what is believed, then after longer.
    fn on_unknown(&mut self, now: Moment, id: ClaimId, error: &Error) {
        let Some(kept) = self.leases.get_mut(&id) else { return };
        let step = kept.span() / 24 * (1 << kept.failures.min(2));
        kept.failures = kept.failures.saturating_add(1);
        kept.renew_at = now + self.noise.between(step / 2, step);
        self.effects.push_back(Effect::Overdue { claim: id, error: error.clone() });
    }
}

/// What its owner may still be at work under stands until its right ends; whoever stops earlier
/// frees it.
fn farewell(loss: Loss) -> Farewell {
    match loss {
        Loss::Broken | Loss::Expired | Loss::Unreachable => Farewell::AfterRight,
        _ => Farewell::Now,
    }
}

#[cfg(test)]
mod tests;
