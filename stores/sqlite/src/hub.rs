//! What this process waits for: word from others, the deaths of neighbours, and short sleeps.
//!
//! One thread a process, started when something is first waited for, polls the process's own FIFO,
//! the processes of the neighbours that its claims stand behind, and its timers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use leasehold_core::{
    ClaimId, Drift, Error, ErrorKind, Grant, Moment, Pushed, PushedEnd, ResourceName, Ticket,
    belief_end,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{DOING, from_io};
use crate::fifo::Fifo;
use crate::files::Share;
use crate::live::{Home, Liveness};
use crate::machine::Machine;
use crate::message::{Message, Word};
use crate::watch::Watch;

/// What a waiting claim of this process expects to be told.
pub(crate) struct Expected<'e> {
    pub(crate) claim: ClaimId,
    pub(crate) ticket: Ticket,
    pub(crate) resource: &'e ResourceName,
    /// The process of the neighbour that it stands behind, and that one's term.
    pub(crate) watch: Option<(Home, Duration)>,
}

/// The waiting side of a process.
pub(crate) struct Hub {
    state: Mutex<State>,
    /// How many claims wait, so that those who never wait need no lock.
    waiting: AtomicUsize,
    live: Arc<Liveness>,
    machine: Machine,
    directory: PathBuf,
    share: Share,
}

/// What the waiting side knows.
#[derive(Default)]
pub(crate) struct State {
    cursor: u64,
    claims: HashMap<ClaimId, Waiting>,
    pub(crate) slots: HashMap<ResourceName, Slot>,
    pub(crate) timers: BTreeMap<(Instant, u64), Waker>,
    pub(crate) next_timer: u64,
    pub(crate) thread: Option<Thread>,
    fifo: Option<Arc<Fifo>>,
    /// To be woken once the lock is let go: a waker may drop a task that takes it again.
    woken: Vec<Waker>,
    pub(crate) closed: bool,
}

/// The thread and how to make it look.
pub(crate) struct Thread {
    event: Arc<OwnedFd>,
    handle: JoinHandle<()>,
}

struct Waiting {
    resource: ResourceName,
    ticket: Ticket,
    watch: Option<Watch>,
}

/// What has happened on one resource.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) cursor: u64,
    pub(crate) pushed: VecDeque<Pushed>,
    /// One a future that waits, by the number of its timer.
    pub(crate) wakers: BTreeMap<u64, Waker>,
    /// How many claims wait.
    pub(crate) claims: usize,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl Hub {
    pub(crate) fn new(
        live: Arc<Liveness>,
        machine: Machine,
        directory: PathBuf,
        share: Share,
    ) -> Arc<Hub> {
        Arc::new(Hub {
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            live,
            machine,
            directory,
            share,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets ready to be told of a waiting claim. Called before the claim is seen by others.
    pub(crate) fn expect(self: &Hub, expected: Expected<'_>) -> Result<(), Error> {
        let watch = expected.watch.map(|(home, term)| Watch::on(home, term, &self.live));
        let mut state = self.lock();
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, DOING, "the store was closed"));
        }
        if state.fifo.is_none() {
            let fifo = Fifo::create(&self.directory, self.share, self.live.home().byte)
                .map_err(|e| from_io(ErrorKind::Unavailable, "no FIFO can be made", e))?;
            fifo.sweep(&self.live);
            state.fifo = Some(Arc::new(fifo));
        }
        let resource = expected.resource.clone();
        let gone = watch.as_ref().is_some_and(Watch::is_over);
        let entry = Waiting { resource, ticket: expected.ticket, watch };
        if state.claims.insert(expected.claim, entry).is_none() {
            state.slot(expected.resource).claims += 1;
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        if gone {
            state.moved(expected.claim);
        }
        wake(state);
        Ok(())
    }

    /// Makes the thread run, and see what is new. Called outside of transactions.
    pub(crate) fn ensure_thread(self: &Arc<Hub>) -> Result<(), Error> {
        let mut state = self.lock();
        self.start(&mut state)
            .map_err(|e| from_io(ErrorKind::Unavailable, "no thread can be started", e))
    }

    /// Starts the thread, or makes it look.
    pub(crate) fn start(self: &Arc<Hub>, state: &mut State) -> io::Result<()> {
        if let Some(thread) = &state.thread {
            // Full is as good as written.
            let _ = rustix::io::write(&thread.event, &1_u64.to_ne_bytes());
            return Ok(());
        }
        if state.closed {
            return Ok(());
        }
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let hub = Arc::clone(self);
        let own = Arc::clone(&event);
        let handle = thread::Builder::new()
            .name("leasehold-wake".into())
            .stack_size(128 * 1024)
            .spawn(move || hub.work(&own))?;
        state.thread = Some(Thread { event, handle });
        Ok(())
    }

    /// Whether it was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Whether any claim of this process waits.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// A claim waits no longer.
    pub(crate) fn forget(&self, claim: ClaimId) {
        if !self.is_waiting() {
            return;
        }
        let mut state = self.lock();
        if let Some(gone) = state.claims.remove(&claim) {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let slot = state.slot(&gone.resource);
            slot.claims = slot.claims.saturating_sub(1);
            slot.pushed.retain(|p| p.grant.claim != claim);
            state.tidy(&gone.resource);
        }
    }

    /// Tells others, or this process itself.
    pub(crate) fn deliver(self: &Arc<Hub>, words: Vec<Word>) {
        let mut own = false;
        for word in words {
            if word.to == self.live.home() {
                self.receive(word.message);
                own = true;
            } else {
                // A lost word costs the waiter the time to its next look.
                let _ = Fifo::write(&self.directory, word.to.byte, &word.message);
            }
        }
        if own {
            let mut state = self.lock();
            // Only to make it look at what changed; what was told is told.
            let _ = self.start(&mut state);
        }
    }

    /// Removes what dead processes left behind.
    pub(crate) fn bury(&self, dead: &[Home]) {
        for home in dead {
            Fifo::remove(&self.directory, home.byte);
        }
    }

    /// Removes what all dead processes left behind.
    pub(crate) fn sweep(&self) {
        Fifo::sweep_all(&self.directory, &self.live, usize::MAX);
    }

    fn receive(&self, message: Message) {
        let mut state = self.lock();
        match message {
            Message::Moved { claim } => state.moved(claim),
            Message::Granted { claim, ticket, token, now, until, previous, slots } => {
                let Some(waiting) = state.claims.get_mut(&claim) else { return };
                if waiting.ticket != ticket {
                    return; // of a place that this claim no longer has
                }
                waiting.watch = None; // it stands behind nobody now
                let resource = waiting.resource.clone();
                let end = self.belief(now, until);
                let grant = Grant { claim, token, until: PushedEnd::At(end), slots, previous };
                state.moved(claim);
                let slot = state.slot(&resource);
                slot.pushed.retain(|p| p.grant.claim != claim);
                slot.pushed.push_back(Pushed { grant, ticket });
            }
        }
        wake(state);
    }

    /// Judge and waiter read one clock, so the end itself is sent.
    fn belief(&self, granted_at: Moment, until: Moment) -> Moment {
        let end = belief_end(granted_at, until.since(granted_at), Drift::None);
        self.machine.local_moment(end)
    }

    /// Lets go of everything; what still waits is woken.
    pub(crate) fn close(&self) {
        let (thread, timers, slots) = {
            let mut state = self.lock();
            state.closed = true;
            state.fifo = None;
            state.claims.clear();
            self.waiting.store(0, Ordering::Relaxed);
            let timers = std::mem::take(&mut state.timers);
            (state.thread.take(), timers, std::mem::take(&mut state.slots))
        };
        timers.into_values().for_each(Waker::wake);
        slots.into_values().flat_map(|s| s.wakers.into_values()).for_each(Waker::wake);
        if let Some(thread) = thread {
            let _ = rustix::io::write(&thread.event, &1_u64.to_ne_bytes());
            if thread.handle.thread().id() != thread::current().id() {
                // A panic in it has been told by its hook.
                let _ = thread.handle.join();
            }
        }
    }

    /// The thread.
    fn work(&self, event: &OwnedFd) {
        while let Some(round) = self.next_round() {
            round.due.into_iter().for_each(Waker::wake);
            self.wait(event, &round.fifo, &round.watched, round.deadline);
            if let Some(fifo) = &round.fifo {
                let mut own = Vec::new();
                let understood = fifo.read_all(&mut own);
                own.into_iter().for_each(|message| self.receive(message));
                if !understood {
                    let mut state = self.lock();
                    state.moved_all();
                    wake(state);
                }
            }
        }
    }

    fn next_round(&self) -> Option<Round> {
        let mut state = self.lock();
        if state.closed {
            return None;
        }
        let now = Instant::now();
        let mut over = Vec::new();
        let mut deadline: Option<Instant> = None;
        let mut watched = Vec::new();
        for (claim, waiting) in &mut state.claims {
            let Some(watch) = &mut waiting.watch else { continue };
            watch.look(now, &self.live);
            if watch.is_over() {
                over.push(*claim);
                continue;
            }
            deadline = earlier(deadline, watch.due());
            watched.extend(watch.process());
        }
        for claim in over {
            if let Some(waiting) = state.claims.get_mut(&claim) {
                waiting.watch = None;
            }
            state.moved(claim);
        }
        let later = state.timers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.timers, later).into_values();
        let due = due.chain(std::mem::take(&mut state.woken)).collect();
        deadline = earlier(deadline, state.timers.keys().next().map(|(at, _)| *at));
        Some(Round { due, fifo: state.fifo.clone(), watched, deadline })
    }

    fn wait(
        &self,
        event: &OwnedFd,
        fifo: &Option<Arc<Fifo>>,
        watched: &[Arc<OwnedFd>],
        deadline: Option<Instant>,
    ) {
        let mut fds = vec![PollFd::new(event, PollFlags::IN)];
        fds.extend(fifo.iter().map(|f| PollFd::from_borrowed_fd(f.fd(), PollFlags::IN)));
        let first = fds.len();
        fds.extend(watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let timeout = deadline.map(|at| {
            let span = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: span.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: span.subsec_nanos().into(),
            }
        });
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return; // interrupted: look and wait again
        }
        let mut count = [0_u8; 8];
        let _ = rustix::io::read(event, &mut count);
        let ended: Vec<Arc<OwnedFd>> = fds[first..]
            .iter()
            .zip(watched)
            .filter(|(polled, _)| !polled.revents().is_empty())
            .map(|(_, fd)| Arc::clone(fd))
            .collect();
        if !ended.is_empty() {
            let mut state = self.lock();
            for waiting in state.claims.values_mut() {
                if let Some(watch) = &mut waiting.watch {
                    watch.process_ended(&ended);
                }
            }
        }
    }
}

/// Lets go of the lock, and wakes.
fn wake(mut state: MutexGuard<'_, State>) {
    let woken = std::mem::take(&mut state.woken);
    drop(state);
    woken.into_iter().for_each(Waker::wake);
}

struct Round {
    due: Vec<Waker>,
    fifo: Option<Arc<Fifo>>,
    watched: Vec<Arc<OwnedFd>>,
    deadline: Option<Instant>,
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

impl State {
    fn next_cursor(&mut self) -> u64 {
        self.cursor += 1;
        self.cursor
    }

    pub(crate) fn slot(&mut self, resource: &ResourceName) -> &mut Slot {
        self.slots.entry(resource.clone()).or_default()
    }

    /// Something has moved for this claim.
    fn moved(&mut self, claim: ClaimId) {
        let Some(waiting) = self.claims.get(&claim) else { return };
        let resource = waiting.resource.clone();
        let cursor = self.next_cursor();
        let slot = self.slot(&resource);
        slot.cursor = cursor;
        let wakers = std::mem::take(&mut slot.wakers);
        self.woken.extend(wakers.into_values());
    }

    fn moved_all(&mut self) {
        let claims: Vec<ClaimId> = self.claims.keys().copied().collect();
        claims.into_iter().for_each(|claim| self.moved(claim));
    }

    /// Forgets a resource for which nothing waits.
    pub(crate) fn tidy(&mut self, resource: &ResourceName) {
        if self.slots.get(resource).is_some_and(|s| s.claims == 0 && s.wakers.is_empty()) {
            self.slots.remove(resource);
        }
    }
}
