//! The one async driver: a thread of its own that keeps leases alive, ends belief in them in time
//! and sees acquisitions through, or what a task that saw to its own has left behind. A caller that
//! blocks its runtime does not lose its leases.
//!
//! The decisions are core's machines'; here their effects are carried out. This is the only place
//! in the crate that starts a thread.

mod bell;
mod errand;
mod job;
mod sleep;
mod thread;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use event_listener::Event;
use leasehold_core::acquire::Granted;
use leasehold_core::renewal::Input;
use leasehold_core::{
    Claim, ClaimId, ClaimRef, Clock, Error, ErrorKind, Keep, Loss, Moment, Renewal, Result, Store,
};

use crate::cell::LeaseCell;
use crate::observer::Observer;
pub(crate) use bell::Bell;
use errand::Errand;
pub(crate) use job::{Acquired, Job, JobHandle};
pub(crate) use sleep::Sleep;
use sleep::Sleepers;
pub(crate) use thread::{acquired, hinted, no_answer, report};

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
    /// No new work. Set under the desk's lock.
    is_closing: AtomicBool,
    closing: Event,
    /// Acquisitions that their own tasks see through; what they leave behind comes here.
    elsewhere: AtomicUsize,
    /// The driver's thread has ended, or an acquisition elsewhere has.
    ended: Event,
    /// A renewal was answered.
    answered: Event,
}

/// Handed over under one short lock, never held across a store call.
struct Desk {
    renewal: Renewal,
    cells: HashMap<ClaimId, Arc<LeaseCell>>,
    jobs: VecDeque<(u64, Job)>,
    cancelled: VecDeque<u64>,
    errands: VecDeque<Errand>,
    sleepers: Sleepers,
    /// The driver sleeps until then; a caller with something due earlier rings.
    asleep_until: Moment,
    is_running: bool,
    has_panicked: bool,
    next_id: u64,
}

/// A grant in the driver's care.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) granted: Granted,
    pub(crate) cell: Arc<LeaseCell>,
}

/// What the driver knew of a lease that its owner took out of its care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    /// It was held.
    Held,
    /// It was lost, and perhaps nobody was told yet.
    Lost(Loss),
    /// Nothing: it was lost or let go before.
    Nothing,
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
            sleepers: Sleepers::default(),
            asleep_until: Moment::START,
            is_running: false,
            has_panicked: false,
            next_id: 0,
        };
        let desk = Mutex::new(desk);
        Shared {
            store,
            clock,
            bell: Arc::default(),
            call_within,
            desk,
            is_closing: AtomicBool::new(false),
            closing: Event::new(),
            elsewhere: AtomicUsize::new(0),
            ended: Event::new(),
            answered: Event::new(),
        }
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
        if self.is_closing() { Err(closed(doing)) } else { Ok(()) }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    pub(crate) fn closing(&self) -> &Event {
        &self.closing
    }

    /// Until the client is closed.
    pub(crate) async fn until_closing(&self) {
        loop {
            let closing = self.closing.listen();
            if self.is_closing() {
                return;
            }
            closing.await;
        }
    }

    /// An acquisition goes on in a task of its own.
    pub(crate) fn begin_elsewhere(&self) {
        self.elsewhere.fetch_add(1, Ordering::SeqCst);
    }

    /// It has ended, and what it left behind was handed over before.
    pub(crate) fn end_elsewhere(&self) {
        self.elsewhere.fetch_sub(1, Ordering::SeqCst);
        if self.is_closing() {
            self.bell.ring();
            self.ended.notify(usize::MAX);
        }
    }

    /// Takes a granted claim into care. Where that cannot be, the claim leaves.
    pub(crate) fn keep(
        self: &Arc<Self>,
        granted: Granted,
        renewed: bool,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<Kept> {
        let claim = granted_ref(&granted);
        let route = self.store.route(&claim.resource);
        let id = claim.id;
        let until = granted.grant.until;
        let cell = Arc::new(LeaseCell::new(until, Arc::clone(&self.clock), observer));
        let keep = Keep { claim, route, asked_at: granted.asked_at, until, renewed };
        let mut desk = self.desk();
        let ready = match self.ensure_open("acquire a lease") {
            Ok(()) => self.ensure_running(&mut desk),
            closed => closed,
        };
        if let Err(error) = ready {
            drop(desk);
            self.withdraw(granted_ref(&granted));
            return Err(error);
        }
        desk.renewal.keep(keep);
        desk.cells.insert(id, Arc::clone(&cell));
        let due = desk.renewal.poll_timeout();
        if due.is_some_and(|due| due < desk.asleep_until) {
            self.bell.ring();
        }
        Ok(Kept { granted, cell })
    }

    /// Lets go of a lease; what was known of it.
    pub(crate) fn forget(&self, claim: ClaimId) -> Known {
        let mut desk = self.desk();
        let cell = desk.cells.remove(&claim);
        let known = if desk.renewal.forget(claim) {
            Known::Held
        } else {
            desk.renewal.untold_loss(claim).map_or(Known::Nothing, Known::Lost)
        };
        drop(desk);
        drop(cell);
        known
    }

    /// The owner of a lost lease is done: what is left of its claim leaves now.
    pub(crate) fn hasten(&self, claim: ClaimId) {
        let now = self.clock.now();
        self.desk().renewal.hasten(now, claim);
        self.bell.ring();
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

    /// As [`Shared::withdraw`], when the right has ended that was believed until then.
    pub(crate) fn withdraw_later(self: &Arc<Self>, claim: ClaimRef, believed_until: Moment) {
        let due = believed_until + claim.term / 6;
        let mut desk = self.desk();
        desk.renewal.withdraw(due, claim);
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
    fn give_back(self: &Arc<Self>, kept: &Kept) {
        self.forget(kept.granted.claim.id);
        kept.cell.on_released();
        self.withdraw(granted_ref(&kept.granted));
    }

    /// Until a moment on the client's clock.
    pub(crate) fn sleep_until(self: &Arc<Self>, until: Moment) -> Sleep {
        Sleep::new(Arc::clone(self), until, false)
    }

    /// As [`Shared::sleep_until`], for as long as the driver has anything else to do.
    pub(crate) fn sleep_beside(self: &Arc<Self>, until: Moment) -> Sleep {
        Sleep::new(Arc::clone(self), until, true)
    }

    /// No new work; the driver ends once nothing is held, in flight or still to leave.
    pub(crate) fn begin_close(&self) {
        let desk = self.desk();
        self.is_closing.store(true, Ordering::SeqCst);
        drop(desk);
        self.closing.notify(usize::MAX);
        self.bell.ring();
    }

    /// Every lease is lost to its owner, and then leaves.
    pub(crate) fn release_all(&self) {
        let told = self.lose_all(Loss::Closed);
        let now = self.clock.now();
        self.desk().renewal.hasten_all(now);
        self.bell.ring();
        if let Err(panic) = told {
            resume_unwind(panic);
        }
    }

    /// Tells every owner first; then the claims leave, also if an observer panics.
    fn lose_all(&self, loss: Loss) -> std::thread::Result<()> {
        let mut desk = self.desk();
        let mut cells: Vec<(ClaimId, Arc<LeaseCell>, bool)> =
            desk.cells.drain().map(|(id, cell)| (id, cell, false)).collect();
        for (_, cell, is_new) in &mut cells {
            *is_new = cell.mark_lost(loss);
        }
        drop(desk);
        let mut told = Ok(());
        for (_, cell, _) in cells.iter().filter(|(_, _, is_new)| *is_new) {
            told = told.and(catch_unwind(AssertUnwindSafe(|| cell.tell_lost(loss))));
        }
        let now = self.clock.now();
        let mut desk = self.desk();
        for (id, ..) in &cells {
            if let Some(claim) = desk.renewal.take(*id) {
                desk.renewal.withdraw(now, claim);
            }
        }
        told
    }

    /// Until no renewal of a claim is on its way.
    pub(crate) async fn until_unasked(&self, claim: ClaimId) {
        loop {
            let answered = self.answered.listen();
            if !self.desk().renewal.is_asked(claim) {
                return;
            }
            answered.await;
        }
    }

    /// Until the driver has ended after [`Shared::begin_close`]: nothing is held, in flight or
    /// still to leave.
    pub(crate) async fn until_ended(&self) {
        loop {
            let ended = self.ended.listen();
            if !self.desk().is_running && self.elsewhere.load(Ordering::SeqCst) == 0 {
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

pub(crate) fn closed(doing: &'static str) -> Error {
    Error::new(ErrorKind::Closed, doing, "the client was closed")
}

/// The driver's thread took what it was doing with it.
fn no_driver(doing: &'static str) -> Error {
    let detail = "the client's driver ended by a panic";
    Error::new(ErrorKind::Bug, doing, detail).maybe_applied()
}
