//! The acquire machine: from a wish to a grant, whatever gets lost on the way.
//!
//! A synchronous machine: it is told what happened and when, and says what to do. Timers, calls in
//! flight and cancellation interleave here, so that a seeded simulation drives it through
//! thousands of schedules a second. The driver of the `leasehold` crate runs the same code.
//!
//! The rules it keeps (law 6, 7 and the hand-over note of the design):
//!
//! - One absolute deadline bounds it, store up or down.
//! - A retried enter goes under the same claim id; after a claim has ended, under a new one.
//! - A pushed grant is believed only with the ticket of the last waiting answer, and from the send
//!   time of the latest call that was answered waiting with that ticket.
//! - It looks again by itself: at the holder's remaining term, at every heartbeat of its place, and
//!   once after every reconnect.
//! - When it gives up, the claim leaves; if an enter was never answered, the leave says so.

mod input;
pub(crate) mod withdraw;

use core::time::Duration;

use crate::answer::{Busy, Cursor, Ended, Grant, Pushed, PushedEnd, Waiting};
use crate::backoff::{Backoff, Noise};
use crate::claim::{Claim, ClaimId, ClaimRef, Ids, Place, Ticket};
use crate::error::{Applied, Error, ErrorKind};
use crate::profile::{PlaceKept, Profile};
use crate::time::Moment;
use crate::validity::{Drift, belief_end};

pub use input::{CallId, Effect, Granted, Input, Outcome, Patience, Progress};
use withdraw::Withdrawals;

/// Look again at least this often, hint or not.
const RECHECK_MAX: Duration = Duration::from_secs(30);
/// Hints that come faster than this, more than a few times on end, do not make it look more often.
const RECHECK_MIN: Duration = Duration::from_millis(1);
/// How many looks may follow each other at once.
const QUICK_LOOKS_MAX: u32 = 16;
/// How long it waits at most before it goes on under a new claim id, when one after the other is
/// lost.
const RESTART_MAX: Duration = Duration::from_secs(2);

/// What is wanted, and what the store is like.
#[derive(Debug, Clone)]
pub struct AcquirePlan {
    /// The claim; its id is replaced by fresh ones, its place by what `patience` and the store ask.
    pub claim: Claim,
    /// For how long to wait.
    pub patience: Patience,
    /// Fail if the store has not answered anything within this time.
    pub reach_within: Duration,
    /// How places are kept.
    pub place: PlaceKept,
    /// What the judging clock may gain.
    pub drift: Drift,
    /// A pushed grant is confirmed by a call of our own before it is returned: where durability
    /// was asked for, another's release proves nothing about our connection.
    pub confirm_pushed: bool,
}

impl AcquirePlan {
    /// A plan for this claim on a store with this profile.
    pub fn new(claim: Claim, patience: Patience, profile: &Profile) -> AcquirePlan {
        AcquirePlan {
            claim,
            patience,
            reach_within: Duration::from_secs(10),
            place: profile.place,
            drift: profile.drift,
            confirm_pushed: false,
        }
    }
}

/// The machine. See the [module's documentation](self).
#[derive(Debug)]
pub struct Acquire {
    plan: AcquirePlan,
    ids: Ids,
    noise: Noise,
    backoff: Backoff,
    started: Moment,
    calls: u64,
    claim: Claim,
    /// Some enter of the present claim was sent and has no clear answer.
    unanswered: bool,
    /// A hint came while an enter or a look was in flight: its answer may be older than the hint.
    heard: bool,
    /// For watches that fail one after the other.
    rewatch: Backoff,
    /// For claims that are lost one after the other; the first is made anew at once.
    restarts: Option<Backoff>,
    phase: Phase,
    watch: Watch,
    cursor: Cursor,
    withdrawals: Withdrawals,
    /// Some call has been answered.
    reached: bool,
    /// What the last call came to, for the outcome at the deadline.
    last: Last,
    outcome: Option<Outcome>,
    progress: Option<Progress>,
}

#[derive(Debug)]
enum Phase {
    /// Nothing in flight; the next enter is due then.
    Idle { due: Moment, busy: bool },
    /// An enter is in flight.
    Entering { call: CallId, sent: Moment },
    /// The claim stands in the queue.
    Queued(Queued),
    /// The outcome is known; only withdrawals and late answers remain.
    Over,
}

#[derive(Debug)]
struct Queued {
    ticket: Ticket,
    /// Send time of the latest call that was answered waiting with this ticket.
    base: Moment,
    check: Option<(CallId, Moment)>,
    next_check: Moment,
    last_check: Moment,
    /// Looks that came within [`RECHECK_MIN`] of the one before.
    quick_looks: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Watch {
    Off { retry_at: Moment },
    On,
}

#[derive(Debug)]
enum Last {
    Nothing,
    Busy(Busy),
    Error(Error),
}

impl Acquire {
    /// A machine that begins at `now`; `seed` is 128 random bits for claim ids and jitter.
    pub fn new(plan: AcquirePlan, now: Moment, seed: u128) -> Acquire {
        let mut ids = Ids::seeded(seed);
        let jitter = u64::try_from(seed >> 64).unwrap_or_default();
        let mut claim = plan.claim.clone();
        claim.id = ids.claim();
        claim.place = match plan.patience {
            Patience::Try => Place::No,
            Patience::Forever | Patience::Until(_) => Place::Term(plan.place.term()),
        };
        Acquire {
            noise: Noise::seeded(jitter),
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(2), !jitter),
            started: now,
            calls: 0,
            claim,
            unanswered: false,
            heard: false,
            rewatch: Backoff::new(Duration::from_millis(20), Duration::from_secs(1), jitter / 3),
            restarts: None,
            phase: Phase::Idle { due: now, busy: false },
            watch: Watch::Off { retry_at: now },
            cursor: Cursor::default(),
            withdrawals: Withdrawals::new(jitter.rotate_left(17)),
            reached: false,
            last: Last::Nothing,
            outcome: None,
            progress: None,
            plan,
            ids,
        }
    }

    /// Whether nothing is left to be done: the outcome was taken, and no claim of this machine may
    /// still stand at the store but the granted one.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Over) && self.outcome.is_none() && self.withdrawals.is_empty()
    }

    /// The next moment at which [`Acquire::poll_effect`] has something to say unasked.
    pub fn poll_timeout(&self) -> Option<Moment> {
        if self.outcome.is_some() || self.progress.is_some() {
            return Some(Moment::START);
        }
        let withdrawal = self.withdrawals.poll_timeout();
        let phase = match &self.phase {
            Phase::Idle { due, busy } => Some(if *busy { self.watch_due(*due) } else { *due }),
            Phase::Entering { .. } => None,
            Phase::Queued(queued) if queued.check.is_some() => Some(self.watch_due(Moment::NEVER)),
            Phase::Queued(queued) => Some(self.watch_due(queued.next_check)),
            Phase::Over => return withdrawal,
        };
        let reach = (!self.reached).then(|| self.reach_end());
        [withdrawal, phase, self.end(), reach].into_iter().flatten().min()
    }

    /// When it ends whatever is the case; a try waits for answers only.
    fn end(&self) -> Option<Moment> {
        match self.plan.patience {
            Patience::Until(end) => Some(end),
            Patience::Try => Some(self.reach_end()),
            Patience::Forever => None,
        }
    }

    fn reach_end(&self) -> Moment {
        self.started + self.plan.reach_within
    }

    fn watch_due(&self, other: Moment) -> Moment {
        match self.watch {
            Watch::Off { retry_at } => retry_at.min(other),
            Watch::On => other,
        }
    }

    /// What to do now. Call again until it says nothing.
    ///
    /// `now` is read before the effect is carried out: it is the send time from which belief is
    /// counted.
    pub fn poll_effect(&mut self, now: Moment) -> Option<Effect> {
        self.on_time(now);
        if let Some(progress) = self.progress.take() {
            return Some(Effect::Progress(progress));
        }
        if let Some(outcome) = self.outcome.take() {
            return Some(Effect::Done(outcome));
        }
        if let Some(effect) = self.withdrawals.poll_effect(now, &mut self.calls) {
            return Some(effect);
        }
        match &mut self.phase {
            Phase::Idle { due, .. } if *due <= now => Some(self.send_enter(now)),
            Phase::Idle { busy: true, .. } => self.send_watch(now),
            Phase::Queued(queued) if queued.check.is_none() && queued.next_check <= now => {
                Some(self.send_check(now))
            }
            Phase::Queued(_) => self.send_watch(now),
            Phase::Idle { .. } | Phase::Entering { .. } | Phase::Over => None,
        }
    }

    fn send_enter(&mut self, now: Moment) -> Effect {
        let call = self.next_call();
        self.heard = false;
        self.phase = Phase::Entering { call, sent: now };
        Effect::Enter { call, claim: self.claim.clone() }
    }

    fn send_check(&mut self, now: Moment) -> Effect {
        let call = self.next_call();
        self.heard = false;
        if let Phase::Queued(queued) = &mut self.phase {
            queued.check = Some((call, now));
            queued.last_check = now;
        }
        Effect::Check { call, claim: self.claim_ref() }
    }

    fn send_watch(&mut self, now: Moment) -> Option<Effect> {
        match self.watch {
            Watch::Off { retry_at } if retry_at <= now => {
                self.watch = Watch::On;
                Some(Effect::Watch {
                    claim: self.claim.id,
                    since: self.cursor,
                    at_most: RECHECK_MAX,
                })
            }
            _ => None,
        }
    }

    fn next_call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    fn claim_ref(&self) -> ClaimRef {
        ClaimRef { enter_unanswered: self.unanswered, ..self.claim.to_ref() }
    }

    /// The deadline is looked at first, on every wake.
    fn on_time(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Over) {
            return;
        }
        let is_over = self.end().is_some_and(|end| now >= end);
        let is_unreached = !self.reached && now >= self.reach_end();
        if !is_over && !is_unreached {
            return;
        }
        let outcome = match core::mem::replace(&mut self.last, Last::Nothing) {
            Last::Error(error) => Outcome::Failed(error),
            Last::Busy(busy) if is_over => Outcome::TimedOut(busy),
            // A store that was not asked in time has not failed.
            Last::Nothing if is_over && (self.calls == 0 || self.has_waited()) => {
                Outcome::TimedOut(Busy::default())
            }
            Last::Busy(_) | Last::Nothing => Outcome::Failed(self.unreached()),
        };
        self.finish(now, outcome);
    }

    /// Whether a wait, and not a try, has been answered by the store.
    fn has_waited(&self) -> bool {
        self.reached && self.plan.patience != Patience::Try
    }

    fn unreached(&self) -> Error {
        Error::new(ErrorKind::Unreachable, "enter the queue", "the store has not answered in time")
            .on(&self.claim.resource)
            .maybe_applied()
    }

    /// Ends the machine with an outcome that is not a grant; the claim leaves if it may be there.
    fn finish(&mut self, now: Moment, outcome: Outcome) {
        let stands = match self.phase {
            Phase::Entering { .. } => {
                self.unanswered = true;
                true
            }
            Phase::Queued(_) => true,
            Phase::Idle { .. } => self.unanswered,
            Phase::Over => false,
        };
        if stands {
            self.withdraw(now);
        }
        self.phase = Phase::Over;
        self.progress = None;
        self.outcome = Some(outcome);
    }

    /// Sees the present claim out of the store.
    fn withdraw(&mut self, now: Moment) {
        let term = self.claim.term;
        let until = match (self.plan.place, self.claim.place) {
            // A place that the store watches lasts as long as this process.
            (PlaceKept::Watched, Place::Term(_)) => Moment::NEVER,
            (_, Place::Term(place)) => now + term.max(place) + term.max(place),
            (_, Place::No) => now + term + term,
        };
        self.withdrawals.push_until(self.claim_ref(), now, until);
    }

    /// Tells the machine what happened.
    pub fn handle(&mut self, now: Moment, input: Input) {
        match input {
            Input::Entered { call, result } => self.on_entered(now, call, result),
            Input::Checked { call, renewed } => self.on_checked(now, call, renewed),
            Input::Left { call, result } => {
                self.reached |= result.is_ok();
                self.withdrawals.on_left(now, call, result);
            }
            Input::Hint(hint) => self.on_hint(now, hint),
            Input::WatchFailed => {
                self.watch = Watch::Off { retry_at: now + self.rewatch.next_wait() };
            }
            Input::Reconnected => self.look_now(now),
            Input::Cancel if matches!(self.phase, Phase::Over) => self.take_back(now),
            Input::Cancel => self.finish(now, Outcome::Cancelled),
        }
    }

    /// Cancelled between the outcome and its delivery: a grant nobody will get is given back.
    fn take_back(&mut self, now: Moment) {
        if let Some(Outcome::Granted(granted)) = &self.outcome {
            let token = Some(granted.grant.token);
            let enter_unanswered = granted.unanswered;
            let claim = ClaimRef { token, enter_unanswered, ..granted.claim.to_ref() };
            self.withdrawals.push(claim, now);
            self.outcome = Some(Outcome::Cancelled);
        }
    }

    fn on_entered(&mut self, now: Moment, call: CallId, result: crate::Result<crate::Admission>) {
        let Phase::Entering { call: expected, sent } = self.phase else {
            return; // it was withdrawn, and its leave knows that an enter was unanswered
        };
        if call != expected {
            return;
        }
        match result {
            Ok(answer) => {
                self.reached = true;
                self.backoff.reset();
                self.on_admission(now, sent, answer);
            }
            Err(error) => self.on_error(now, error),
        }
    }

    fn on_admission(&mut self, now: Moment, sent: Moment, answer: crate::Admission) {
        match answer {
            crate::Admission::Granted(grant) => self.on_granted(now, sent, grant),
            crate::Admission::Waiting(waiting) => self.on_waiting(now, sent, waiting),
            crate::Admission::Busy(busy) => self.on_busy(now, busy),
            crate::Admission::Gone(_) => self.restart(now, Duration::ZERO),
        }
    }

    fn on_granted(&mut self, now: Moment, asked_at: Moment, grant: Grant) {
        if now >= grant.until || grant.claim != self.claim.id {
            // The answer came too late to be believed; the term or this leave ends the grant.
            self.withdraw(now);
            self.restart(now, RECHECK_MIN);
            return;
        }
        let claim = self.claim.clone();
        self.phase = Phase::Over;
        self.progress = None;
        let unanswered = self.unanswered;
        self.outcome = Some(Outcome::Granted(Granted { grant, claim, asked_at, unanswered }));
    }

    fn on_waiting(&mut self, now: Moment, sent: Moment, waiting: Waiting) {
        let Waiting { ticket, recheck_in, ref holder, .. } = waiting;
        self.last = Last::Busy(Busy { holder: holder.clone(), free_in: Some(recheck_in) });
        let next_check = self.next_check(now, recheck_in);
        match &mut self.phase {
            Phase::Queued(queued) => {
                queued.base = if queued.ticket == ticket { queued.base.max(sent) } else { sent };
                queued.ticket = ticket;
                queued.next_check = next_check;
            }
            phase => {
                *phase = Phase::Queued(Queued {
                    ticket,
                    base: sent,
                    check: None,
                    next_check,
                    last_check: sent,
                    quick_looks: 0,
                });
            }
        }
        self.progress = Some(Progress::Waiting(waiting));
        if core::mem::take(&mut self.heard) {
            self.look_now(now);
        }
    }

    /// A little after the holder's term may end, at the latest at the next heartbeat. Heartbeats
    /// lie on one grid for the whole process, so that the driver sends them together.
    fn next_check(&mut self, now: Moment, recheck_in: Duration) -> Moment {
        let wait = recheck_in.clamp(RECHECK_MIN, RECHECK_MAX);
        let recheck = now + wait + self.noise.between(Duration::ZERO, wait / 10);
        match self.plan.place {
            PlaceKept::Watched => recheck,
            PlaceKept::Heartbeat { every, .. } => recheck.min(next_on_grid(now, every)),
        }
    }

    fn on_busy(&mut self, now: Moment, busy: Busy) {
        if self.plan.patience == Patience::Try {
            self.phase = Phase::Idle { due: now, busy: true };
            self.finish(now, Outcome::Busy(busy));
            return;
        }
        let wait = self.backoff.next_wait().min(busy.free_in.unwrap_or(RECHECK_MAX));
        self.last = Last::Busy(busy);
        self.start_over(now, wait.max(RECHECK_MIN));
        if let Phase::Idle { busy, .. } = &mut self.phase {
            *busy = true;
        }
    }

    /// Goes on under a new claim id after one was lost; later and later if it happens again.
    fn restart(&mut self, now: Moment, wait: Duration) {
        let again = self.restarts.as_mut().map(Backoff::next_wait);
        let seed = self.noise.next_u64();
        self.restarts
            .get_or_insert_with(|| Backoff::new(Duration::from_millis(20), RESTART_MAX, seed));
        self.start_over(now, wait.max(again.unwrap_or_default()));
    }

    /// Goes on under a new claim id; ids are used once.
    fn start_over(&mut self, now: Moment, wait: Duration) {
        if self.unanswered {
            self.withdraw(now); // an enter of it may still arrive
        }
        self.claim.id = self.ids.claim();
        self.unanswered = false;
        self.phase = Phase::Idle { due: now + wait, busy: false };
    }

    fn on_error(&mut self, now: Moment, error: Error) {
        self.unanswered |= error.applied() == Applied::Maybe;
        self.phase = Phase::Idle { due: now, busy: false };
        let late = !self.reached && now >= self.reach_end();
        if !error.kind().is_transient() || late {
            self.finish(now, Outcome::Failed(error));
            return;
        }
        let wait = self.backoff.next_wait();
        self.phase = Phase::Idle { due: now + wait, busy: false };
        self.progress = Some(Progress::Trying(error.clone()));
        self.last = Last::Error(error);
    }

    fn on_checked(&mut self, now: Moment, call: CallId, renewed: crate::Renewed) {
        let Phase::Queued(queued) = &mut self.phase else { return };
        let Some((expected, sent)) = queued.check else { return };
        if call != expected {
            return;
        }
        queued.check = None;
        self.reached |= !matches!(renewed, crate::Renewed::Unknown(_));
        match renewed {
            crate::Renewed::Granted(grant) => self.on_granted(now, sent, grant),
            crate::Renewed::Waiting(waiting) => {
                self.backoff.reset();
                self.restarts = None;
                self.on_waiting(now, sent, waiting);
            }
            crate::Renewed::Gone(why) => self.on_place_lost(now, why),
            crate::Renewed::Unknown(error) => self.on_check_failed(now, error),
            // Only a granted claim is told alive, and with its token; look again.
            crate::Renewed::Alive { .. } => self.look_later(now),
        }
    }

    fn on_place_lost(&mut self, now: Moment, why: Ended) {
        let wait = if why == Ended::Released { RECHECK_MIN } else { Duration::ZERO };
        self.restart(now, wait);
    }

    fn on_check_failed(&mut self, now: Moment, error: Error) {
        if !error.kind().is_transient() {
            self.finish(now, Outcome::Failed(error));
            return;
        }
        self.progress = Some(Progress::Trying(error.clone()));
        self.last = Last::Error(error);
        self.look_later(now);
    }

    fn look_later(&mut self, now: Moment) {
        let wait = self.backoff.next_wait();
        if let Phase::Queued(queued) = &mut self.phase {
            queued.next_check = now + wait;
        }
    }

    fn look_now(&mut self, now: Moment) {
        match &mut self.phase {
            Phase::Idle { due, .. } => *due = (*due).min(now),
            Phase::Queued(queued) => {
                self.heard |= queued.check.is_some();
                let earliest = queued.last_check + RECHECK_MIN;
                let is_quick = now < earliest;
                queued.quick_looks = if is_quick { queued.quick_looks + 1 } else { 0 };
                // A store may hint without end.
                let may_look = !is_quick || queued.quick_looks <= QUICK_LOOKS_MAX;
                queued.next_check = queued.next_check.min(if may_look { now } else { earliest });
            }
            Phase::Entering { .. } => self.heard = true,
            Phase::Over => {}
        }
    }

    fn on_hint(&mut self, now: Moment, hint: crate::Hint) {
        self.watch = Watch::Off { retry_at: now };
        self.rewatch.reset();
        match hint {
            crate::Hint::Moved(cursor) => {
                self.cursor = self.cursor.max(cursor);
                self.look_now(now);
            }
            crate::Hint::Granted(pushed) => self.on_pushed(now, pushed),
        }
    }

    fn on_pushed(&mut self, now: Moment, pushed: Pushed) {
        let Phase::Queued(queued) = &self.phase else {
            return self.look_now(now); // it has overtaken the answer that it belongs to
        };
        if pushed.grant.claim != self.claim.id || pushed.ticket != queued.ticket {
            return; // an old word for an old place
        }
        let (asked_at, until) = match pushed.grant.until {
            PushedEnd::FirstTerm(term) => {
                (queued.base, belief_end(queued.base, term, self.plan.drift))
            }
            PushedEnd::At(until) => (now, until),
        };
        if self.plan.confirm_pushed || now >= until {
            self.look_now(now);
            return;
        }
        self.on_granted(now, asked_at, pushed.grant.map_until(|_| until));
    }

    /// The claim that would be granted now, for traces and tests.
    pub fn claim_id(&self) -> ClaimId {
        self.claim.id
    }
}

/// The first multiple of `every` after `now`.
fn next_on_grid(now: Moment, every: Duration) -> Moment {
    let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    let steps = now.as_nanos() / every + 1;
    Moment::from_nanos(steps.saturating_mul(every))
}

#[cfg(test)]
mod ghosts;
#[cfg(test)]
mod tests;
