//! The one async driver: a thread of its own that keeps leases alive, ends belief in them in time
//! and sees acquisitions through. A caller that blocks its runtime does not lose its leases.
//!
//! The decisions are core's machines'; here their effects are carried out. This is the only place
//! in the crate that starts a thread.

mod bell;
mod job;
mod thread;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use event_listener::Event;
use leasehold_core::acquire::Granted;
use leasehold_core::renewal::Input;
use leasehold_core::{
    Claim, ClaimId, ClaimRef, Clock, Error, ErrorKind, Keep, Loss, Moment, Renewal, Result, Store,
};

use crate::cell::LeaseCell;
pub(crate) use bell::Bell;
pub(crate) use job::{Job, JobHandle};
pub(crate) use thread::{hinted, no_answer, report};

/// A store call on its way.
pub(crate) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What the callers' threads and the driver's thread share.
pub(crate) struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    bell: Arc<Bell>,
    /// How long one store call may take.
    call_within: Duration,
    desk: Mutex<Desk>,
    /// The driver's thread has ended.
    ended: Event,
}

/// Handed over under one short lock, never held across a store call.
struct Desk {
    renewal: Renewal,
    cells: HashMap<ClaimId, Arc<LeaseCell>>,
    jobs: VecDeque<(u64, Job)>,
    cancelled: VecDeque<u64>,
    errands: VecDeque<BoxFuture<()>>,
    sleepers: BTreeMap<(Moment, u64), Waker>,
    /// The driver sleeps until then; a caller with something due earlier rings.
    asleep_until: Moment,
    is_running: bool,
    is_closing: bool,
    next_id: u64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        call_within: Duration,
        seed: u64,
    ) -> Shared {
        let desk = Desk {
            renewal: Renewal::new(seed),
            cells: HashMap::new(),
            jobs: VecDeque::new(),
            cancelled: VecDeque::new(),
            errands: VecDeque::new(),
            sleepers: BTreeMap::new(),
            asleep_until: Moment::START,
            is_running: false,
            is_closing: false,
            next_id: 0,
        };
        let desk = Mutex::new(desk);
        Shared { store, clock, bell: Arc::default(), call_within, desk, ended: Event::new() }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// How long one store call may take.
    pub(crate) fn call_within(&self) -> Duration {
        self.call_within
    }

    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Refuses new work once the client is closing.
    pub(crate) fn ensure_open(&self, doing: &'static str) -> Result<()> {
        if self.desk().is_closing {
            return Err(Error::new(ErrorKind::Closed, doing, "the client was closed"));
        }
        Ok(())
    }

    /// Takes a granted claim into care.
    pub(crate) fn keep(
        self: &Arc<Self>,
        granted: &Granted,
        renewed: bool,
        cell: Arc<LeaseCell>,
    ) -> Result<()> {
        let claim = granted_ref(granted);
        let route = self.store.route(&claim.resource);
        let id = claim.id;
        let Granted { asked_at, ref grant, .. } = *granted;
        let keep = Keep { claim, route, asked_at, until: grant.until, renewed };
        let mut desk = self.desk();
        self.ensure_running(&mut desk)?;
        desk.renewal.keep(keep);
        desk.cells.insert(id, cell);
        let due = desk.renewal.poll_timeout();
        if due.is_some_and(|due| due < desk.asleep_until) {
            self.bell.ring();
        }
        Ok(())
    }

    /// Lets go of a lease whose owner sends the leave; whether it was still held.
    pub(crate) fn forget(&self, claim: ClaimId) -> bool {
        let mut desk = self.desk();
        desk.cells.remove(&claim);
        desk.renewal.forget(claim)
    }

    /// Sees a claim out of the store in the background.
    pub(crate) fn withdraw(self: &Arc<Self>, claim: ClaimRef) {
        let now = self.clock.now();
        let mut desk = self.desk();
        desk.renewal.withdraw(now, claim);
        // Without a thread nobody sends it: then the term ends the claim.
        let _ = self.ensure_running(&mut desk);
        self.bell.ring();
    }

    /// A lease is known to be lost by other means.
    pub(crate) fn lose(&self, claim: ClaimId, loss: Loss) {
        let now = self.clock.now();
        self.desk().renewal.handle(now, Input::Lost { claim, loss });
        self.bell.ring();
    }

    /// Hands an acquisition to the driver.
    pub(crate) fn submit(self: &Arc<Self>, job: Job) -> Result<JobHandle> {
        let cell = Arc::clone(&job.outcome);
        let mut desk = self.desk();
        self.ensure_running(&mut desk)?;
        desk.next_id += 1;
        let id = desk.next_id;
        desk.jobs.push_back((id, job));
        drop(desk);
        self.bell.ring();
        Ok(JobHandle { id, cell, shared: Arc::clone(self) })
    }

    fn cancel(&self, job: u64) {
        self.desk().cancelled.push_back(job);
        self.bell.ring();
    }

    /// A grant that nobody will take goes back to the store.
    fn give_back(self: &Arc<Self>, granted: &Granted) {
        self.withdraw(granted_ref(granted));
    }

    /// Runs a store call: where it was asked for if the store allows it, else on the driver.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Self>,
        call: BoxFuture<Result<T>>,
    ) -> Result<T> {
        if self.store.profile().polls_anywhere {
            return call.await;
        }
        let slot = Arc::new(Slot::default());
        let filled = Arc::clone(&slot);
        self.run_errand(Box::pin(async move { filled.fill(call.await) }))?;
        SlotTaken(slot).await
    }

    fn run_errand(self: &Arc<Self>, errand: BoxFuture<()>) -> Result<()> {
        let mut desk = self.desk();
        self.ensure_running(&mut desk)?;
        desk.errands.push_back(errand);
        drop(desk);
        self.bell.ring();
        Ok(())
    }

    /// Until a moment on the client's clock.
    pub(crate) fn sleep_until(self: &Arc<Self>, until: Moment) -> Sleep {
        Sleep { shared: Arc::clone(self), until, key: None }
    }

    /// No new work; the driver ends once nothing is held, in flight or still to leave.
    pub(crate) fn begin_close(&self) {
        self.desk().is_closing = true;
        self.bell.ring();
    }

    /// Every lease leaves; its owner finds it released.
    pub(crate) fn release_all(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut desk = self.desk();
        let cells: Vec<(ClaimId, Arc<LeaseCell>)> = desk.cells.drain().collect();
        for (id, _) in &cells {
            if let Some(claim) = desk.renewal.take(*id) {
                desk.renewal.withdraw(now, claim);
            }
        }
        drop(desk);
        for (_, cell) in cells {
            cell.on_released();
        }
        self.bell.ring();
    }

    /// Until the driver has ended after [`Shared::begin_close`]: nothing is held, in flight or
    /// still to leave.
    pub(crate) async fn until_ended(&self) {
        loop {
            let ended = self.ended.listen();
            if !self.desk().is_running {
                return;
            }
            ended.await;
        }
    }

    fn ensure_running(self: &Arc<Self>, desk: &mut Desk) -> Result<()> {
        if desk.is_running {
            return Ok(());
        }
        thread::start(Arc::clone(self)).map_err(|e| {
            Error::new(ErrorKind::Unavailable, "start the driver's thread", e.to_string())
        })?;
        desk.is_running = true;
        desk.asleep_until = Moment::START;
        Ok(())
    }
}

/// The reference by which a granted claim is renewed and left.
pub(crate) fn granted_ref(granted: &Granted) -> ClaimRef {
    ClaimRef {
        token: Some(granted.grant.token),
        enter_unanswered: granted.unanswered,
        ..Claim::to_ref(&granted.claim)
    }
}

/// The answer to an errand, once the driver has it.
#[derive(Debug)]
struct Slot<T>(Mutex<(Option<T>, Option<Waker>)>);

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot(Mutex::new((None, None)))
    }
}

impl<T> Slot<T> {
    fn fill(&self, answer: T) {
        let mut slot = self.0.lock().unwrap_or_else(|e| e.into_inner());
        slot.0 = Some(answer);
        if let Some(waker) = slot.1.take() {
            waker.wake();
        }
    }
}

struct SlotTaken<T>(Arc<Slot<T>>);

impl<T> Future for SlotTaken<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.0.lock().unwrap_or_else(|e| e.into_inner());
        match slot.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// The future of [`Shared::sleep_until`].
pub(crate) struct Sleep {
    shared: Arc<Shared>,
    until: Moment,
    key: Option<(Moment, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.shared.clock.now() >= self.until {
            return Poll::Ready(());
        }
        let shared = Arc::clone(&self.shared);
        let mut desk = shared.desk();
        if shared.ensure_running(&mut desk).is_err() {
            return Poll::Ready(());
        }
        let key = match self.key {
            Some(key) => key,
            None => {
                desk.next_id += 1;
                (self.until, desk.next_id)
            }
        };
        desk.sleepers.insert(key, cx.waker().clone());
        if self.until < desk.asleep_until {
            shared.bell.ring();
        }
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.shared.desk().sleepers.remove(&key);
        }
    }
}
