//! What the async driver does in the library, done step by step: it carries out what the machines
//! ask for and hands them what comes back.

use std::time::Duration;

use leasehold_core::acquire::{CallId, Effect, Granted, Input, Outcome};
use leasehold_core::renewal;
use leasehold_core::{
    Admission, ClaimId, Cursor, Drift, Error, ErrorKind, Hint, Keep, Left, Moment, PushedEnd,
    Renewed, Route, belief_end,
};

use super::bugs::Bug;
use super::client::{Doing, Hold, InFlight, Lease, Machine, Owner, named};
use super::faults::Fault;
use super::world::{Ask, Happening, Reply, Request, World};
use crate::history::{Answer, Cease, Verb, What, Who};

/// How long a call other than a renewal waits for its answer.
const CALL_MAX: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn who(&self, client: usize) -> Who {
        Who::Client(u32::try_from(client).unwrap_or(u32::MAX))
    }

    fn now(&self, client: usize) -> Moment {
        self.clients[client].clock.at(self.time)
    }

    pub(super) fn drive_if_running(&mut self, client: usize) {
        if self.clients[client].up && !self.clients[client].standing {
            self.drive(client);
        }
    }

    /// Carries out all that the machines ask for, then plans the next wake.
    pub(super) fn drive(&mut self, client: usize) {
        let now = self.now(client);
        let mut rounds = 0;
        loop {
            let mut quiet = true;
            while let Some(effect) = self.clients[client].renewal.poll_effect(now) {
                quiet = false;
                self.renewal_asks(client, now, effect);
            }
            let ids: Vec<u32> = self.clients[client].machines.keys().copied().collect();
            for id in ids {
                while let Some(machine) = self.clients[client].machines.get_mut(&id)
                    && let Some(effect) = machine.acquire.poll_effect(now)
                {
                    quiet = false;
                    self.acquire_asks(client, id, now, effect);
                }
            }
            rounds += 1;
            if quiet || rounds > 1000 {
                break;
            }
        }
        let done = |m: &Machine| m.over && m.acquire.is_finished();
        self.clients[client].machines.retain(|_, m| !done(m));
        self.plan_wake(client, now);
    }

    fn plan_wake(&mut self, client: usize, now: Moment) {
        let whom = &mut self.clients[client];
        let soonest = now + Duration::from_micros(10);
        let due = whom.due().map(|due| due.max(soonest));
        let wake = due.and_then(|due| whom.clock.when(due));
        if wake == whom.wake && wake.is_some_and(|w| w > self.time) {
            return;
        }
        whom.wake = wake;
        whom.wakes += 1;
        let number = whom.wakes;
        if let Some(time) = wake {
            self.at(time, Happening::Wakes { client, wake: number });
        }
    }

    fn ask(&mut self, client: usize, owner: Owner, call: CallId, now: Moment, ask: Ask) {
        let (verb, claims, within) = match &ask {
            Ask::Enter(claim) => (Verb::Enter, vec![(claim.resource.clone(), claim.id)], CALL_MAX),
            Ask::Renew(claims) => {
                let within = claims.iter().map(|c| c.term / 4).min().unwrap_or(CALL_MAX);
                (Verb::Renew, named(claims), within.min(CALL_MAX))
            }
            Ask::Leave(claim) => (Verb::Leave, named(std::slice::from_ref(claim)), CALL_MAX),
        };
        let number = self.calls_made;
        self.calls_made += claims.len() as u64;
        let who = self.who(client);
        for (call, (resource, claim)) in (number..).zip(&claims) {
            self.history.push(self.time, who, Some((resource, *claim)), What::Sent { call, verb });
        }
        let life = self.clients[client].life;
        let in_flight = InFlight { owner, call, verb, claims, sent: now };
        self.clients[client].calls.insert(number, in_flight);
        self.after(within, Happening::TimedOut { client, life, number });
        self.send(Request { number, client, life, ask });
    }

    // --- what comes to a client --------------------------------------------------------------

    pub(super) fn befalls(&mut self, client: usize, happening: Happening) {
        let now = self.now(client);
        match happening {
            Happening::Replied { number, reply, .. } => self.replied(client, now, number, reply),
            Happening::TimedOut { number, .. } => self.unanswered(client, now, number),
            Happening::Told { claim, hint, .. } => self.told(client, now, claim, hint),
            Happening::WatchEnds { machine, watch, .. } => {
                if let Some(machine) = self.clients[client].machines.get_mut(&machine)
                    && let Some((number, since)) = machine.watch
                    && number == watch
                {
                    machine.watch = None;
                    machine.acquire.handle(now, Input::Hint(Hint::Moved(since)));
                }
            }
            Happening::Steps { task, plan, .. }
                if plan == self.clients[client].tasks[task].plan =>
            {
                self.step(client, now, task);
            }
            Happening::Cancels { machine, .. } => {
                if let Some(machine) = self.clients[client].machines.get_mut(&machine)
                    && !machine.over
                {
                    self.fired.count(Fault::Cancelled);
                    machine.acquire.handle(now, Input::Cancel);
                }
            }
            Happening::Reached { task, claim, passed, .. } => {
                self.reached(client, now, task, claim, passed);
            }
            Happening::Rejoins { .. } => self.rejoins(client, now),
            _ => {}
        }
    }

    fn rejoins(&mut self, client: usize, now: Moment) {
        self.clients[client].subscribed = true;
        self.record(self.who(client), None, What::Reconnected);
        if self.has(Bug::NoWakeAfterReconnect) {
            return;
        }
        for machine in self.clients[client].machines.values_mut() {
            machine.acquire.handle(now, Input::Reconnected);
        }
        if self.dice.chance(500) {
            self.clients[client].renewal.handle(now, renewal::Input::Reverify);
        }
    }

    fn replied(&mut self, client: usize, now: Moment, number: u64, reply: Reply) {
        let Some(call) = self.clients[client].calls.remove(&number) else { return };
        self.record_answers(client, number, &call, &reply);
        let base = if self.has(Bug::ValidityFromReply) { now } else { call.sent };
        let drift = self.weather.drift;
        let until = |left: Duration| belief_end(base, left, drift);
        match (call.owner, reply) {
            (Owner::Renewal, Reply::Renewed(renewed)) => {
                let renewed = renewed.into_iter().map(|r| r.map_until(until)).collect();
                let input = renewal::Input::Renewed { call: call.call, renewed };
                self.clients[client].renewal.handle(now, input);
            }
            (Owner::Renewal, Reply::Left(result)) => {
                let input = renewal::Input::Left { call: call.call, result };
                self.clients[client].renewal.handle(now, input);
            }
            (Owner::Acquire(id), reply) => {
                let call = call.call;
                let input = match reply {
                    Reply::Entered(result) => {
                        Input::Entered { call, result: result.map(|a| a.map_until(until)) }
                    }
                    Reply::Left(result) => Input::Left { call, result },
                    Reply::Renewed(renewed) => match renewed.into_iter().next() {
                        Some(renewed) => Input::Checked { call, renewed: renewed.map_until(until) },
                        None => return,
                    },
                };
                if let Some(machine) = self.clients[client].machines.get_mut(&id) {
                    machine.acquire.handle(now, input);
                }
            }
            (Owner::Renewal, Reply::Entered(_)) => {}
        }
    }

    /// No answer came: whether it happened is not known.
    fn unanswered(&mut self, client: usize, now: Moment, number: u64) {
        let Some(call) = self.clients[client].calls.remove(&number) else { return };
        let who = self.who(client);
        for (call, (resource, claim)) in (number..).zip(&call.claims) {
            let what = What::Returned { call, answer: Answer::Unknown };
            self.history.push(self.time, who, Some((resource, *claim)), what);
        }
        let error = Error::new(ErrorKind::Unreachable, "ask the store", "no answer in time");
        let error = error.maybe_applied();
        match (call.owner, call.verb) {
            (Owner::Renewal, Verb::Leave) => {
                let input = renewal::Input::Left { call: call.call, result: Err(error) };
                self.clients[client].renewal.handle(now, input);
            }
            (Owner::Renewal, _) => {
                let renewed = call.claims.iter().map(|_| Renewed::Unknown(error.clone())).collect();
                let input = renewal::Input::Renewed { call: call.call, renewed };
                self.clients[client].renewal.handle(now, input);
            }
            (Owner::Acquire(id), verb) => {
                let call = call.call;
                let input = match verb {
                    Verb::Enter => Input::Entered { call, result: Err(error) },
                    Verb::Renew => Input::Checked { call, renewed: Renewed::Unknown(error) },
                    Verb::Leave => Input::Left { call, result: Err(error) },
                };
                if let Some(machine) = self.clients[client].machines.get_mut(&id) {
                    machine.acquire.handle(now, input);
                }
            }
        }
    }

    fn record_answers(&mut self, client: usize, number: u64, call: &InFlight, reply: &Reply) {
        let who = self.who(client);
        for (index, (resource, claim)) in call.claims.iter().enumerate() {
            let answer = match reply {
                Reply::Entered(Ok(Admission::Granted(grant))) => Answer::Granted(grant.token),
                Reply::Entered(Ok(Admission::Waiting(waiting))) => Answer::Waiting(waiting.ticket),
                Reply::Entered(Ok(Admission::Busy(_))) => Answer::Busy,
                Reply::Entered(Ok(Admission::Gone(how))) => Answer::Gone(*how),
                Reply::Entered(Err(_)) | Reply::Left(Err(_)) => Answer::Unknown,
                Reply::Left(Ok(Left::Released)) => Answer::Released,
                Reply::Left(Ok(Left::Gone(how))) => Answer::Gone(*how),
                Reply::Renewed(renewed) => match renewed.get(index) {
                    Some(Renewed::Alive { .. }) => Answer::Alive,
                    Some(Renewed::Granted(grant)) => Answer::Granted(grant.token),
                    Some(Renewed::Waiting(waiting)) => Answer::Waiting(waiting.ticket),
                    Some(Renewed::Gone(how)) => Answer::Gone(*how),
                    Some(Renewed::Unknown(_)) | None => Answer::Unknown,
                },
            };
            let what = What::Returned { call: number + index as u64, answer };
            self.history.push(self.time, who, Some((resource, *claim)), what);
        }
    }

    fn told(&mut self, client: usize, now: Moment, claim: ClaimId, hint: Hint) {
        let hint = if self.has(Bug::PushFromArrival) { from_arrival(now, hint) } else { hint };
        let whom = &mut self.clients[client];
        if !whom.subscribed {
            return;
        }
        let Some(id) = whom.machine_of(claim) else { return };
        let Some(machine) = whom.machines.get_mut(&id) else { return };
        if machine.watch.take().is_some() {
            machine.acquire.handle(now, Input::Hint(hint));
        } else if machine.words.len() < 8 {
            machine.words.push_back(hint);
        }
    }

    /// Every call in flight fails with its connection.
    pub(super) fn fail_calls(&mut self, client: usize) {
        let now = self.now(client);
        let numbers: Vec<u64> = self.clients[client].calls.keys().copied().collect();
        for number in numbers {
            self.unanswered(client, now, number);
        }
    }

    pub(super) fn fail_watches(&mut self, client: usize) {
        let now = self.now(client);
        for machine in self.clients[client].machines.values_mut() {
            machine.words.clear();
            if machine.watch.take().is_some() {
                machine.acquire.handle(now, Input::WatchFailed);
            }
        }
    }

    // --- what the machines ask for -----------------------------------------------------------

    fn acquire_asks(&mut self, client: usize, id: u32, now: Moment, effect: Effect) {
        let owner = Owner::Acquire(id);
        match effect {
            Effect::Enter { call, claim } => self.ask(client, owner, call, now, Ask::Enter(claim)),
            Effect::Check { call, claim } => {
                self.ask(client, owner, call, now, Ask::Renew(vec![claim]));
            }
            Effect::Leave { call, claim } => self.ask(client, owner, call, now, Ask::Leave(claim)),
            Effect::Watch { since, at_most, .. } => self.watch(client, id, now, since, at_most),
            Effect::Progress(_) => {}
            Effect::Done(outcome) => self.done(client, id, now, outcome),
        }
    }

    fn watch(&mut self, client: usize, id: u32, now: Moment, since: Cursor, at_most: Duration) {
        let (number, life) = (self.serial_number(), self.clients[client].life);
        let whom = &mut self.clients[client];
        let subscribed = whom.subscribed;
        let Some(machine) = whom.machines.get_mut(&id) else { return };
        if !subscribed {
            machine.acquire.handle(now, Input::WatchFailed);
        } else if let Some(word) = machine.words.pop_front() {
            machine.acquire.handle(now, Input::Hint(word));
        } else {
            machine.watch = Some((number, since));
            self.after(at_most, Happening::WatchEnds { client, life, machine: id, watch: number });
        }
    }

    fn serial_number(&mut self) -> u64 {
        self.calls_made += 1;
        self.calls_made
    }

    fn done(&mut self, client: usize, id: u32, now: Moment, outcome: Outcome) {
        let who = self.who(client);
        let Some(machine) = self.clients[client].machines.get_mut(&id) else { return };
        machine.over = true;
        let (task, inner, wish) = (machine.task, machine.inner, machine.wish);
        let claim = machine.acquire.claim_id();
        match outcome {
            Outcome::Granted(granted) => {
                let on = Some((&granted.claim.resource, granted.claim.id));
                self.history.push(self.time, who, on, What::Got { wish });
                self.granted(client, now, task, inner, granted);
            }
            _ => {
                let name = self.resources[0].clone();
                self.record(who, Some((&name, claim)), What::GaveUp { wish });
                if inner {
                    if let Some(hold) = self.clients[client].hold(task) {
                        hold.inner = None;
                    }
                } else {
                    self.back_to_idle(client, task);
                }
            }
        }
    }

    fn granted(&mut self, client: usize, now: Moment, task: usize, inner: bool, granted: Granted) {
        let Granted { grant, claim, asked_at, unanswered } = granted;
        let id = claim.id;
        let mut named = claim.to_ref();
        named.token = Some(grant.token);
        named.enter_unanswered = unanswered;
        let outer_gone = inner && self.clients[client].hold(task).is_none();
        if outer_gone {
            self.clients[client].renewal.withdraw(now, named);
            return;
        }
        let what = What::Believes {
            holder: claim.holder.id,
            mode: claim.mode,
            token: grant.token,
            slots: grant.slots.clone(),
        };
        self.record(self.who(client), Some((&claim.resource, id)), what);
        let renewed = self.dice.chance(900);
        let keep = Keep { claim: named, route: Route(0), asked_at, until: grant.until, renewed };
        let lease = Lease { task, inner, resource: claim.resource.clone(), ceased: false };
        self.clients[client].renewal.keep(keep);
        self.clients[client].leases.insert(id, lease);
        self.plan_belief_end(client, id);
        if inner {
            if let Some(hold) = self.clients[client].hold(task) {
                hold.inner = Some(id);
            }
            return;
        }
        let hold = Hold {
            claim,
            token: grant.token,
            slots: grant.slots,
            done: 0,
            wanted: 2 + u32::try_from(self.dice.below(5)).unwrap_or_default(),
            inner: None,
            inner_tried: false,
        };
        self.clients[client].tasks[task].doing = Doing::Holding(Box::new(hold));
        self.step(client, now, task);
    }

    fn renewal_asks(&mut self, client: usize, now: Moment, effect: renewal::Effect) {
        match effect {
            renewal::Effect::Renew { call, claims, .. } => {
                self.ask(client, Owner::Renewal, call, now, Ask::Renew(claims));
            }
            renewal::Effect::Leave { call, claim } => {
                self.ask(client, Owner::Renewal, call, now, Ask::Leave(claim));
            }
            renewal::Effect::Lost { claim, .. } => self.lost(client, now, claim),
            renewal::Effect::Kept { claim, .. } => self.plan_belief_end(client, claim),
            renewal::Effect::AtRisk { .. } | renewal::Effect::Overdue { .. } => {}
        }
    }

    // --- belief ------------------------------------------------------------------------------

    fn plan_belief_end(&mut self, client: usize, claim: ClaimId) {
        let whom = &self.clients[client];
        let until = whom.renewal.until(claim);
        if let Some(time) = until.and_then(|until| whom.clock.when(until)) {
            self.at(time, Happening::BeliefEnds { client, claim });
        }
    }

    /// The clock has moved: all ends of belief are elsewhere.
    pub(super) fn replan_beliefs(&mut self, client: usize) {
        let claims: Vec<ClaimId> = self.clients[client].leases.keys().copied().collect();
        for claim in claims {
            self.plan_belief_end(client, claim);
        }
    }

    /// Belief ends by the clock alone, whether the client runs or not.
    pub(super) fn belief_ends(&mut self, client: usize, claim: ClaimId) {
        let now = self.now(client);
        let whom = &self.clients[client];
        if whom.renewal.until(claim).is_some_and(|until| until <= now) {
            self.cease(client, claim, Cease::Deadline);
            self.drive_if_running(client);
        }
    }

    fn cease(&mut self, client: usize, claim: ClaimId, why: Cease) {
        let who = self.who(client);
        let Some(lease) = self.clients[client].leases.get_mut(&claim) else { return };
        if std::mem::replace(&mut lease.ceased, true) {
            return;
        }
        let on = Some((&lease.resource, claim));
        self.history.push(self.time, who, on, What::Ceases { why });
    }

    fn lost(&mut self, client: usize, now: Moment, claim: ClaimId) {
        self.cease(client, claim, Cease::Told);
        let Some(lease) = self.clients[client].leases.remove(&claim) else { return };
        if lease.inner {
            if let Some(hold) = self.clients[client].hold(lease.task) {
                hold.inner = None;
            }
        } else {
            self.abandon(client, now, lease.task);
        }
    }

    /// Lets go of a lease of one's own will.
    pub(super) fn release(&mut self, client: usize, now: Moment, claim: ClaimId) {
        self.cease(client, claim, Cease::Release);
        self.clients[client].leases.remove(&claim);
        if let Some(named) = self.clients[client].renewal.take(claim) {
            self.clients[client].renewal.withdraw(now, named);
        }
    }
}

/// The bug of counting a pushed grant from its arrival.
fn from_arrival(now: Moment, hint: Hint) -> Hint {
    match hint {
        Hint::Granted(mut pushed) => {
            if let PushedEnd::FirstTerm(term) = pushed.grant.until {
                pushed.grant.until = PushedEnd::At(belief_end(now, term, Drift::Tenth));
            }
            Hint::Granted(pushed)
        }
        other => other,
    }
}
