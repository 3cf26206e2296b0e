//! An acquisition that the task which wants it sees through by itself: for stores whose calls may
//! be polled anywhere. A word that reaches this process then wakes that task and no thread before.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use event_listener::EventListener;
use leasehold_core::acquire::{CallId, Effect, Input, Outcome};
use leasehold_core::{Moment, Renewed};

use crate::driver::{Acquired, BoxFuture, Job, Shared, Sleep, acquired, hinted, no_answer, report};

/// The future of what it comes to.
///
/// Dropping it withdraws the claim: the driver's thread sees to what is left to be done.
pub(crate) struct Here {
    shared: Arc<Shared>,
    job: Option<Job>,
    calls: Vec<Call>,
    watch: Option<Watch>,
    sleep: Option<(Moment, Sleep)>,
    closing: Option<EventListener>,
}

/// A call on its way.
struct Call {
    id: CallId,
    limit: Moment,
    answer: BoxFuture<Input>,
    /// What stands for the answer once the call has had its time.
    overdue: fn(CallId) -> Input,
}

struct Watch {
    limit: Moment,
    hint: BoxFuture<Input>,
}

impl Here {
    pub(crate) fn new(shared: &Arc<Shared>, job: Job) -> Here {
        let shared = Arc::clone(shared);
        shared.begin_elsewhere();
        let calls = Vec::new();
        Here { shared, job: Some(job), calls, watch: None, sleep: None, closing: None }
    }

    /// Carries out what the machine asks for; the outcome, once there is one.
    fn carry_out(&mut self, now: Moment) -> Option<Outcome> {
        loop {
            let job = self.job.as_mut()?;
            match job.machine.poll_effect(now)? {
                Effect::Done(outcome) => return Some(outcome),
                Effect::Progress(progress) => report(&self.shared, job, progress),
                Effect::Watch { claim, since, at_most } => {
                    let store = Arc::clone(self.shared.store());
                    let resource = job.resource.clone();
                    let hint = Box::pin(async move {
                        hinted(store.changed(&resource, Some(claim), since, at_most).await)
                    });
                    let limit = now + self.shared.call_within() + at_most;
                    self.watch = Some(Watch { limit, hint });
                }
                effect => self.send(now, effect),
            }
        }
    }

    fn send(&mut self, now: Moment, effect: Effect) {
        let store = Arc::clone(self.shared.store());
        let (id, answer, overdue): (_, BoxFuture<Input>, fn(CallId) -> Input) = match effect {
            Effect::Enter { call, claim } => {
                let entered = async move {
                    let result = store.enter(&claim).await;
                    Input::Entered { call, result }
                };
                (call, Box::pin(entered), enter_overdue)
            }
            Effect::Check { call, claim } => {
                let checked = async move {
                    let renewed = store.renew(&[claim]).await.into_iter().next();
                    let missing = || Renewed::Unknown(no_answer("look at the queue"));
                    Input::Checked { call, renewed: renewed.unwrap_or_else(missing) }
                };
                (call, Box::pin(checked), check_overdue)
            }
            Effect::Leave { call, claim } => {
                let left = async move {
                    let result = store.leave(&claim).await;
                    Input::Left { call, result }
                };
                (call, Box::pin(left), leave_overdue)
            }
            Effect::Watch { .. } | Effect::Progress(_) | Effect::Done(_) => return,
        };
        let limit = now + self.shared.call_within();
        self.calls.push(Call { id, limit, answer, overdue });
    }

    /// Whether the machine was told anything.
    fn poll_calls(&mut self, now: Moment, cx: &mut Context<'_>) -> bool {
        let Some(job) = &mut self.job else { return false };
        let mut told = false;
        let mut at = 0;
        while let Some(call) = self.calls.get_mut(at) {
            let input = match call.answer.as_mut().poll(cx) {
                Poll::Ready(input) => input,
                Poll::Pending if call.limit <= now => (call.overdue)(call.id),
                Poll::Pending => {
                    at += 1;
                    continue;
                }
            };
            drop(self.calls.swap_remove(at));
            job.machine.handle(self.shared.clock().now(), input);
            told = true;
        }
        if let Some(watch) = &mut self.watch {
            let input = match watch.hint.as_mut().poll(cx) {
                Poll::Ready(input) => Some(input),
                Poll::Pending => (watch.limit <= now).then_some(Input::WatchFailed),
            };
            if let Some(input) = input {
                self.watch = None;
                job.machine.handle(self.shared.clock().now(), input);
                told = true;
            }
        }
        told
    }

    /// When something has to be done unasked.
    fn next_wake(&self) -> Moment {
        let machine = self.job.as_ref().and_then(|job| job.machine.poll_timeout());
        let calls = self.calls.iter().map(|call| call.limit);
        let watch = self.watch.as_ref().map(|watch| watch.limit);
        calls.chain(machine).chain(watch).min().unwrap_or(Moment::NEVER)
    }

    /// Whether that moment has come.
    fn poll_sleep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = self.next_wake();
        if until == Moment::NEVER {
            self.sleep = None;
            return Poll::Pending;
        }
        match &mut self.sleep {
            Some((at, sleep)) if *at == until => Pin::new(sleep).poll(cx),
            sleep => {
                let (_, sleep) = sleep.insert((until, self.shared.sleep_until(until)));
                Pin::new(sleep).poll(cx)
            }
        }
    }
}

impl Future for Here {
    type Output = Acquired;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Acquired> {
        let this = &mut *self;
        loop {
            let now = this.shared.clock().now();
            if this.shared.is_closing()
                && let Some(job) = &mut this.job
            {
                job.machine.handle(now, Input::Cancel);
            }
            if let Some(outcome) = this.carry_out(now)
                && let Some(job) = &this.job
            {
                return Poll::Ready(acquired(&this.shared, job, outcome));
            }
            if this.poll_calls(now, cx) {
                continue;
            }
            let closing = this.closing.get_or_insert_with(|| this.shared.closing().listen());
            if this.shared.is_closing() || Pin::new(closing).poll(cx).is_ready() {
                this.closing = None;
                continue;
            }
            match this.poll_sleep(cx) {
                Poll::Ready(()) => this.sleep = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            self.hand_over(job);
        }
        self.shared.end_elsewhere();
    }
}

impl Here {
    /// The driver sees to what is left to be done.
    fn hand_over(&mut self, mut job: Job) {
        let now = self.shared.clock().now();
        job.machine.handle(now, Input::Cancel);
        // What is dropped half-way is not answered any more.
        for call in self.calls.drain(..) {
            job.machine.handle(now, (call.overdue)(call.id));
        }
        while let Some(effect) = job.machine.poll_effect(now) {
            if !matches!(effect, Effect::Done(_) | Effect::Progress(_)) {
                job.effects.push(effect);
            }
        }
        if !job.effects.is_empty() || !job.machine.is_finished() {
            // Nobody waits for it. Without a thread nobody sends it: then the term ends the claim.
            drop(self.shared.submit(job));
        }
    }
}

fn enter_overdue(call: CallId) -> Input {
    Input::Entered { call, result: Err(no_answer("enter the queue").maybe_applied()) }
}

fn check_overdue(call: CallId) -> Input {
    Input::Checked { call, renewed: Renewed::Unknown(no_answer("look at the queue")) }
}

fn leave_overdue(call: CallId) -> Input {
    Input::Left { call, result: Err(no_answer("leave").maybe_applied()) }
}
