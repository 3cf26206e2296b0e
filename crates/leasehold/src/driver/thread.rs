//! The driver's thread.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesUnordered, Stream};
use leasehold_core::acquire::{self, CallId, Outcome, Progress};
use leasehold_core::renewal;
use leasehold_core::{
    ClaimRef, ClockKind, Cursor, Error, ErrorKind, Hint, Left, Loss, Moment, Renewed, ResourceName,
    Result, Route,
};

use super::errand::Errand;
use super::{Acquired, BoxFuture, Job, Shared, closed, no_driver};
use crate::request::AcquireError;

/// A clock that runs through a suspend is not what the operating system's waits go by: while
/// something is held or waited for by such a clock it is looked at this often.
const SUSPEND_TICK: Duration = Duration::from_millis(250);
/// How many answers are taken in before the ends of belief are looked at again.
const ANSWERS_MAX: usize = 32;
/// The most claims that are looked after in one call.
const CHECKS_MAX: usize = 1000;

pub(super) fn start(shared: Arc<Shared>) -> io::Result<()> {
    let builder = std::thread::Builder::new().name("leasehold".into()).stack_size(256 * 1024);
    let run = move || {
        let mut driver = Driver::new(shared);
        if catch_unwind(AssertUnwindSafe(|| driver.run())).is_err() {
            driver.after_panic();
        }
    };
    builder.spawn(run).map(drop)
}

/// What a store call came to.
enum Answer {
    Renewed { call: CallId, renewed: Vec<Renewed> },
    Left { call: CallId, result: Result<Left> },
    Job { job: u64, input: acquire::Input },
    Checked { asked: Vec<(u64, CallId)>, renewed: Vec<Renewed> },
    Errand,
}

struct Driver {
    shared: Arc<Shared>,
    waker: Waker,
    jobs: HashMap<u64, Job>,
    calls: FuturesUnordered<BoxFuture<(u64, Answer)>>,
    /// When each call in flight has had its time.
    limits: BTreeMap<(Moment, u64), AbortHandle>,
    /// The limit of a call, to take it out when the call is answered.
    limit_of: HashMap<u64, Moment>,
    /// The watch of each job, ended with it.
    watches: HashMap<u64, AbortHandle>,
    next_call: u64,
    /// The watch for what may have ended claims, and how far it has got.
    disturbance: Option<BoxFuture<Cursor>>,
    disturbed_at: Cursor,
}

impl Driver {
    fn new(shared: Arc<Shared>) -> Driver {
        Driver {
            waker: Waker::from(Arc::clone(shared.bell())),
            shared,
            jobs: HashMap::new(),
            calls: FuturesUnordered::new(),
            limits: BTreeMap::new(),
            limit_of: HashMap::new(),
            watches: HashMap::new(),
            next_call: 0,
            disturbance: None,
            disturbed_at: Cursor::default(),
        }
    }

    fn run(&mut self) {
        loop {
            // The ends of belief come first on every wake.
            self.run_renewals();
            self.take_in();
            self.run_jobs();
            self.end_overdue_calls();
            if self.poll_calls() || self.poll_disturbance() {
                continue;
            }
            match self.next_wake() {
                None => return,
                Some(until) => {
                    let wait = until.since(self.shared.clock.now());
                    let wait = (until != Moment::NEVER).then_some(wait);
                    self.shared.bell.wait(wait);
                }
            }
        }
    }

    /// New jobs, cancelled ones, errands, and sleepers whose time has come.
    fn take_in(&mut self) {
        let now = self.shared.clock.now();
        let shared = Arc::clone(&self.shared);
        let mut desk = shared.desk();
        desk.asleep_until = Moment::START;
        let jobs: Vec<(u64, Job)> = desk.jobs.drain(..).collect();
        let cancelled: Vec<u64> = desk.cancelled.drain(..).collect();
        let errands: Vec<Errand> = desk.errands.drain(..).collect();
        let due = desk.sleepers.take_due(now);
        drop(desk);
        due.into_iter().for_each(Waker::wake);
        self.jobs.extend(jobs);
        for id in cancelled {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.machine.handle(now, acquire::Input::Cancel);
            }
        }
        if shared.is_closing() {
            for job in self.jobs.values_mut() {
                job.machine.handle(now, acquire::Input::Cancel);
            }
        }
        for Errand { limit, call } in errands {
            let call = Box::pin(async move {
                call.await;
                Answer::Errand
            });
            self.send(limit, call, || Answer::Errand);
        }
    }

    fn run_renewals(&mut self) {
        loop {
            let now = self.shared.clock.now();
            let mut desk = self.shared.desk();
            let Some(effect) = desk.renewal.poll_effect(now) else { return };
            match effect {
                renewal::Effect::Lost { claim, loss } => {
                    // Marked before the desk is let go: an owner who lets go of it now sees why.
                    let cell = desk.cells.remove(&claim).filter(|cell| cell.mark_lost(loss));
                    drop(desk);
                    let word = loss.word();
                    tracing::warn!(target: "leasehold", claim = %claim, loss = word, "lease lost");
                    if let Some(cell) = cell {
                        cell.tell_lost(loss);
                    }
                }
                renewal::Effect::AtRisk { claim } => {
                    let cell = desk.cells.get(&claim).cloned();
                    drop(desk);
                    tracing::warn!(target: "leasehold", claim = %claim, "lease at risk");
                    if let Some(cell) = cell {
                        cell.on_at_risk();
                    }
                }
                renewal::Effect::Kept { claim, until } => {
                    let cell = desk.cells.get(&claim).cloned();
                    drop(desk);
                    if let Some(cell) = cell
                        && !cell.on_kept(until)
                    {
                        // Its owner saw the end of belief before this answer: that is final.
                        self.shared.lose(claim, Loss::Expired);
                    }
                }
                renewal::Effect::Overdue { claim, error } => {
                    let cell = desk.cells.get(&claim).cloned();
                    drop(desk);
                    let error = at_store(&self.shared, error);
                    tracing::warn!(target: "leasehold", claim = %claim, %error, "renewal failed");
                    if let Some(cell) = cell {
                        cell.on_retry(&error);
                    }
                }
                renewal::Effect::Renew { call, claims, within, .. } => {
                    drop(desk);
                    self.send_renew(now, call, claims, within);
                }
                renewal::Effect::Leave { call, claim } => {
                    drop(desk);
                    self.send_leave(now, call, claim);
                }
            }
        }
    }

    fn send_renew(&mut self, now: Moment, call: CallId, claims: Vec<ClaimRef>, within: Duration) {
        tracing::debug!(target: "leasehold", claims = claims.len(), "renew");
        let count = claims.len();
        let store = Arc::clone(&self.shared.store);
        let sent = Box::pin(async move {
            let renewed = store.renew(&claims).await;
            Answer::Renewed { call, renewed }
        });
        let limit = now + within.min(self.shared.call_within);
        self.send(limit, sent, move || Answer::Renewed {
            call,
            renewed: vec![Renewed::Unknown(no_answer("renew leases")); count],
        });
    }

    fn send_leave(&mut self, now: Moment, call: CallId, claim: ClaimRef) {
        let store = Arc::clone(&self.shared.store);
        let sent = Box::pin(async move {
            let result = store.leave(&claim).await;
            Answer::Left { call, result }
        });
        let limit = now + self.shared.call_within;
        self.send(limit, sent, move || Answer::Left {
            call,
            result: Err(no_answer("leave").maybe_applied()),
        });
    }

    /// Starts a store call; at its limit it is dropped and `overdue` stands for its answer.
    fn send(
        &mut self,
        limit: Moment,
        call: BoxFuture<Answer>,
        overdue: impl FnOnce() -> Answer + Send + 'static,
    ) -> AbortHandle {
        self.next_call += 1;
        let id = self.next_call;
        let (abort, registration) = AbortHandle::new_pair();
        if limit != Moment::NEVER {
            self.limits.insert((limit, id), abort.clone());
            self.limit_of.insert(id, limit);
        }
        let call = Abortable::new(call, registration);
        self.calls
            .push(Box::pin(async move { (id, call.await.unwrap_or_else(|_aborted| overdue())) }));
        abort
    }

    fn end_overdue_calls(&mut self) {
        let now = self.shared.clock.now();
        while let Some(entry) = self.limits.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let (_, id) = *entry.key();
            entry.remove().abort();
            self.limit_of.remove(&id);
        }
    }

    fn run_jobs(&mut self) {
        let now = self.shared.clock.now();
        let mut checks: BTreeMap<Route, Vec<(u64, CallId, ClaimRef)>> = BTreeMap::new();
        let ids: Vec<u64> = self.jobs.keys().copied().collect();
        for id in ids {
            while let Some(effect) = self.next_effect(now, id) {
                if let acquire::Effect::Check { call, claim } = effect {
                    let route = self.shared.store.route(&claim.resource);
                    checks.entry(route).or_default().push((id, call, claim));
                } else {
                    self.carry_out(now, id, effect);
                }
            }
        }
        for mut batch in checks.into_values() {
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(CHECKS_MAX));
                self.send_checks(now, std::mem::replace(&mut batch, rest));
            }
        }
    }

    /// What a job asks for next; one that is finished is let go.
    fn next_effect(&mut self, now: Moment, id: u64) -> Option<acquire::Effect> {
        let job = self.jobs.get_mut(&id)?;
        let effect = job.effects.pop().or_else(|| job.machine.poll_effect(now));
        if effect.is_none() && job.machine.is_finished() {
            self.jobs.remove(&id);
            if let Some(watch) = self.watches.remove(&id) {
                watch.abort();
            }
        }
        effect
    }

    fn carry_out(&mut self, now: Moment, id: u64, effect: acquire::Effect) {
        let limit = now + self.shared.call_within;
        let store = Arc::clone(&self.shared.store);
        match effect {
            acquire::Effect::Enter { call, claim } => {
                let sent = Box::pin(async move {
                    let result = store.enter(&claim).await;
                    Answer::Job { job: id, input: acquire::Input::Entered { call, result } }
                });
                self.send(limit, sent, move || {
                    let result = Err(no_answer("enter the queue").maybe_applied());
                    Answer::Job { job: id, input: acquire::Input::Entered { call, result } }
                });
            }
            acquire::Effect::Leave { call, claim } => {
                let sent = Box::pin(async move {
                    let result = store.leave(&claim).await;
                    Answer::Job { job: id, input: acquire::Input::Left { call, result } }
                });
                self.send(limit, sent, move || {
                    let result = Err(no_answer("leave").maybe_applied());
                    Answer::Job { job: id, input: acquire::Input::Left { call, result } }
                });
            }
            acquire::Effect::Watch { claim, since, at_most } => {
                let Some(job) = self.jobs.get(&id) else { return };
                let resource = job.resource.clone();
                let sent = Box::pin(async move {
                    let hint = store.changed(&resource, Some(claim), since, at_most).await;
                    Answer::Job { job: id, input: hinted(hint) }
                });
                let limit = limit + at_most;
                let watch = self.send(limit, sent, move || Answer::Job {
                    job: id,
                    input: acquire::Input::WatchFailed,
                });
                self.watches.insert(id, watch);
            }
            acquire::Effect::Progress(progress) => self.on_progress(id, progress),
            acquire::Effect::Done(outcome) => self.on_done(id, outcome),
            acquire::Effect::Check { .. } => {} // sent in batches
        }
    }

    /// The looks of all waiting claims of one route travel together.
    fn send_checks(&mut self, now: Moment, batch: Vec<(u64, CallId, ClaimRef)>) {
        let mut asked = Vec::with_capacity(batch.len());
        let mut claims = Vec::with_capacity(batch.len());
        for (job, call, claim) in batch {
            asked.push((job, call));
            claims.push(claim);
        }
        let store = Arc::clone(&self.shared.store);
        let overdue = asked.clone();
        let sent = Box::pin(async move {
            let renewed = store.renew(&claims).await;
            Answer::Checked { asked, renewed }
        });
        self.send(now + self.shared.call_within, sent, move || Answer::Checked {
            renewed: vec![Renewed::Unknown(no_answer("look at the queue")); overdue.len()],
            asked: overdue,
        });
    }

    fn on_progress(&self, id: u64, progress: Progress) {
        if let Some(job) = self.jobs.get(&id) {
            report(&self.shared, job, progress);
        }
    }

    /// A grant is taken into care before anybody is told: whoever waits may be slow to look.
    fn on_done(&mut self, id: u64, outcome: Outcome) {
        let Some(job) = self.jobs.get(&id) else { return };
        let acquired = acquired(&self.shared, job, outcome);
        if let Some(Ok(kept)) = job.outcome.deliver(acquired) {
            self.shared.give_back(&kept);
        }
    }

    /// Whether any call was answered.
    fn poll_calls(&mut self) -> bool {
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        let mut any = false;
        for _ in 0..ANSWERS_MAX {
            let next = std::pin::Pin::new(&mut self.calls).poll_next(&mut cx);
            let Poll::Ready(Some((id, answer))) = next else { break };
            any = true;
            if let Some(limit) = self.limit_of.remove(&id) {
                self.limits.remove(&(limit, id));
            }
            self.on_answer(answer);
        }
        any
    }

    /// Whether claims may have ended behind our back: then all that is held is renewed at once, and
    /// whoever waits looks again.
    fn poll_disturbance(&mut self) -> bool {
        if !self.shared.store.profile().remote {
            return false;
        }
        let since = self.disturbed_at;
        let store = &self.shared.store;
        let watch = self.disturbance.get_or_insert_with(|| {
            let store = Arc::clone(store);
            Box::pin(async move { store.disturbed(since).await })
        });
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        let Poll::Ready(cursor) = watch.as_mut().poll(&mut cx) else { return false };
        self.disturbance = None;
        self.disturbed_at = cursor;
        let now = self.shared.clock.now();
        self.shared.desk().renewal.handle(now, renewal::Input::Reverify);
        for job in self.jobs.values_mut() {
            job.machine.handle(now, acquire::Input::Reconnected);
        }
        true
    }

    fn on_answer(&mut self, answer: Answer) {
        let now = self.shared.clock.now();
        match answer {
            Answer::Renewed { call, renewed } => {
                let input = renewal::Input::Renewed { call, renewed };
                self.shared.desk().renewal.handle(now, input);
                self.shared.answered.notify(usize::MAX);
            }
            Answer::Left { call, result } => {
                self.shared.desk().renewal.handle(now, renewal::Input::Left { call, result });
            }
            Answer::Job { job, input } => {
                if let Some(job) = self.jobs.get_mut(&job) {
                    job.machine.handle(now, input);
                }
            }
            Answer::Checked { asked, renewed } => {
                let missing = || Renewed::Unknown(no_answer("look at the queue"));
                let answers = renewed.into_iter().chain(std::iter::repeat_with(missing));
                for ((job, call), renewed) in asked.into_iter().zip(answers) {
                    if let Some(job) = self.jobs.get_mut(&job) {
                        job.machine.handle(now, acquire::Input::Checked { call, renewed });
                    }
                }
            }
            Answer::Errand => {}
        }
    }

    /// Until when there is nothing to do; `None` once the client is closed and all is done.
    fn next_wake(&self) -> Option<Moment> {
        let mut desk = self.shared.desk();
        let idle = desk.renewal.is_idle() && self.jobs.is_empty() && self.calls.is_empty();
        let nothing_new = desk.jobs.is_empty() && desk.errands.is_empty();
        let nobody = desk.sleepers.is_empty() && self.shared.elsewhere.load(Ordering::SeqCst) == 0;
        if self.shared.is_closing() && idle && nothing_new && nobody {
            desk.is_running = false;
            drop(desk);
            self.shared.ended.notify(usize::MAX);
            return None;
        }
        let jobs = self.jobs.values().filter_map(|job| job.machine.poll_timeout()).min();
        let limit = self.limits.first_key_value().map(|((at, _), _)| *at);
        let sleeper = desk.sleepers.next_wake();
        let renewal = desk.renewal.poll_timeout();
        let next = [jobs, limit, sleeper, renewal].into_iter().flatten().min();
        let mut next = next.unwrap_or(Moment::NEVER);
        let is_timed = !desk.renewal.is_empty() || jobs.is_some() || sleeper.is_some();
        if self.shared.store.profile().clock == ClockKind::Boot && is_timed {
            next = next.min(self.shared.clock.now() + SUSPEND_TICK);
        }
        desk.asleep_until = next;
        Some(next)
    }
}

impl Driver {
    /// An observer that panics takes the driver with it; nobody must go on believing or waiting
    /// then, and a driver that comes after sees out what was claimed.
    fn after_panic(&mut self) {
        let shared = Arc::clone(&self.shared);
        shared.begin_close();
        // Whoever panics here too has been told.
        let _ = shared.lose_all(Loss::Unreachable);
        let mut desk = shared.desk();
        desk.is_running = false;
        let again = std::mem::replace(&mut desk.has_panicked, true);
        for (id, mut job) in self.jobs.drain().filter(|_| !again) {
            job.observer = None;
            job.outcome.deliver(Err(no_driver("acquire a lease").into()));
            desk.cancelled.push_back(id);
            desk.jobs.push_back((id, job));
        }
        let sleepers = desk.sleepers.take_due(Moment::NEVER);
        if !again {
            // Without a thread the terms end what was claimed.
            let _ = shared.ensure_running(&mut desk);
        }
        drop(desk);
        shared.ended.notify(usize::MAX);
        sleepers.into_iter().for_each(Waker::wake);
    }
}

/// What an outcome comes to: a grant comes into the driver's care.
pub(crate) fn acquired(shared: &Arc<Shared>, job: &Job, outcome: Outcome) -> Acquired {
    match outcome {
        Outcome::Granted(granted) => Ok(shared.keep(granted, job.renewed, job.observer.clone())?),
        Outcome::Busy(busy) => Err(AcquireError::Busy(busy)),
        Outcome::TimedOut(busy) => Err(AcquireError::TimedOut(busy)),
        Outcome::Failed(error) => Err(AcquireError::Failed(placed(shared, &job.resource, error))),
        // A task that gives up waits for no outcome; so this is the client's doing.
        Outcome::Cancelled => Err(AcquireError::Failed(closed("acquire a lease"))),
    }
}

pub(crate) fn hinted(hint: Result<Hint>) -> acquire::Input {
    match hint {
        Ok(hint) => acquire::Input::Hint(hint),
        Err(error) => {
            tracing::debug!(target: "leasehold", %error, "watch failed");
            acquire::Input::WatchFailed
        }
    }
}

/// Tells an observer, and the log, how an acquisition goes.
pub(crate) fn report(shared: &Shared, job: &Job, progress: Progress) {
    match progress {
        Progress::Waiting(waiting) => {
            tracing::debug!(target: "leasehold", ahead = waiting.ahead, "waiting");
            if let Some(observer) = &job.observer {
                observer.waiting(&waiting);
            }
        }
        Progress::Trying(error) => {
            let error = placed(shared, &job.resource, error);
            tracing::warn!(target: "leasehold", %error, "store call failed, trying again");
            if let Some(observer) = &job.observer {
                observer.retrying(&error);
            }
        }
    }
}

pub(crate) fn no_answer(doing: &'static str) -> Error {
    Error::new(ErrorKind::Unreachable, doing, "no answer in time")
}

/// The error with its resource and its store, where whoever made it knew neither.
fn placed(shared: &Shared, resource: &ResourceName, error: Error) -> Error {
    let error = if error.resource().is_none() { error.on(resource) } else { error };
    at_store(shared, error)
}

/// The error with its store, where whoever made it did not know it.
pub(super) fn at_store(shared: &Shared, error: Error) -> Error {
    if error.store().is_some() {
        return error;
    }
    error.at(shared.store.profile().url.as_str())
}
