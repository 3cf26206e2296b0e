//! The front's side: forks the keeper, starts the command through it, passes signals on, and is
//! told how it ended.

mod wait;

use std::collections::{HashSet, VecDeque};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Context, Error, Result};
use crate::keeper;
use crate::machine::Machine;
use crate::message::{ENV_MOST, MESSAGE_MOST, REPORT_MOST, ToFront, ToKeeper};
use crate::plan::{Ended, Event, How, Plan, Reason, Signal, Start};
use crate::signals::{Process, Signals, stop_by};
use crate::sys::{self, Forked, Received, Waited};
use crate::time::{ClockKind, Deadline, duration_ns};
use crate::tree::{self, Round, Tree};

/// How long after the moment by which the keeper must have ended the tree the front does it.
const KEEPER_LATE: Duration = Duration::from_secs(1);
/// How long a dropped front waits for the keeper to kill the tree.
const DROP_WAIT: Duration = Duration::from_secs(10);

/// The front's handle on the keeper, and through it on the command.
///
/// Dropping it before [`Event::Ended`] kills the command's whole tree at once and waits for that,
/// at most 10 s: a panic leaves nothing running.
#[derive(Debug)]
pub struct Front {
    socket: Arc<OwnedFd>,
    keeper: Process,
    keeper_pid: i32,
    signals: Signals,
    wake: Arc<OwnedFd>,
    told: Arc<Told>,
    grace: Duration,
    state: State,
    /// The command is in this process's own group.
    shares_group: bool,
    /// A stop signal was passed on: this process stops once the command has.
    stop_asked: bool,
    /// The keeper must have ended the tree by then.
    keeper_until: Option<Instant>,
    command: Option<How>,
    spared: HashSet<i32>,
    events: VecDeque<Event>,
    buffer: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The command has yet to be started.
    Waiting,
    /// The keeper was told to start it.
    Starting,
    /// It runs.
    Running(i32),
    /// The end was reported.
    Over,
}

/// The last deadline that was told, for the senders and the front.
#[derive(Debug, Default)]
struct Told {
    /// 0 before the start and without deadlines, 1 for monotonic, 2 for boot.
    clock: AtomicU8,
    at_ns: AtomicU64,
}

impl Told {
    fn clock(&self) -> Option<ClockKind> {
        match self.clock.load(Ordering::Acquire) {
            1 => Some(ClockKind::Monotonic),
            2 => Some(ClockKind::Boot),
            _ => None,
        }
    }

    fn passed(&self) -> bool {
        let at_ns = self.at_ns.load(Ordering::Acquire);
        self.clock().is_some_and(|clock| clock.now_ns() >= at_ns)
    }

    fn set(&self, deadline: Deadline) {
        self.at_ns.store(deadline.at_ns, Ordering::Release);
        let clock = match deadline.clock {
            ClockKind::Monotonic => 1,
            ClockKind::Boot => 2,
        };
        self.clock.store(clock, Ordering::Release);
    }
}

/// Tells the keeper new deadlines, from any thread.
#[derive(Debug, Clone)]
pub struct DeadlineSender {
    socket: Arc<OwnedFd>,
    told: Arc<Told>,
}

impl DeadlineSender {
    /// Tells the keeper that the right now ends at `deadline`. It never blocks.
    ///
    /// One that is sent when the last one less the grace has come changes nothing any more: the
    /// command is being ended, and that is final.
    ///
    /// # Errors
    /// The deadline is on another clock than the first one, no command with a deadline was
    /// started, or the keeper does not listen (`EAGAIN`) or is gone (`EPIPE`): the old deadline
    /// stands.
    pub fn extend(&self, deadline: Deadline) -> Result<()> {
        const WHAT: &str = "cannot tell the keeper a new deadline";
        if self.told.clock() != Some(deadline.clock) {
            return Err(Error::invalid(WHAT, "it is not on the clock of the first one"));
        }
        let sent_at = deadline.clock.now_ns();
        let message = ToKeeper::Extend { at: deadline.at_ns, sent_at }.encode();
        sys::send(self.socket.as_fd(), &message, &[], false).context(WHAT)?;
        self.told.set(deadline);
        Ok(())
    }
}

/// Makes [`Front::wait`] return [`Event::Woken`], from any thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Wakes the front. Several wakes before it looks are one.
    pub fn wake(&self) {
        sys::eventfd_raise(self.0.as_fd());
    }
}

impl Front {
    /// Forks the keeper, and begins to collect this process's signals (see [`Signals`]).
    ///
    /// To be called first of all: signals that came before act as they do by default.
    ///
    /// # Errors
    /// Another thread runs, an argument holds a zero byte, the parent cannot be watched
    /// (`with_parent`), or the system has no room.
    pub fn fork(plan: &Plan) -> Result<Self> {
        const WHAT: &str = "cannot start the keeper";
        let program = c_string(plan.program.as_os_str())?;
        let args = plan.args.iter().map(|arg| c_string(arg)).collect::<Result<Vec<_>>>()?;
        let parent = plan.with_parent.then(watch_parent).transpose()?;
        let grace_ns = duration_ns(plan.grace);
        let machine = Machine::new(grace_ns, plan.on_deadline, plan.wait_all);
        let spared = tree::children_now();
        let signals = Signals::take()?;
        let (ours, theirs) = sys::pair().context(WHAT)?;
        let (front, front_group) = (sys::getpid(), sys::own_group());
        let keeper_pid = match sys::fork().context(WHAT)? {
            Forked::Parent(pid) => pid,
            Forked::Child => {
                drop((ours, signals));
                let socket = theirs;
                keeper::run(keeper::Setup {
                    socket,
                    parent,
                    front,
                    front_group,
                    program,
                    args,
                    machine,
                })
            }
        };
        // From here on an error drops `ours`, and the keeper ends.
        drop(theirs);
        sys::be_subreaper().context(WHAT)?;
        Ok(Self {
            socket: Arc::new(ours),
            keeper: Process::open(keeper_pid)?,
            keeper_pid,
            signals,
            wake: Arc::new(sys::eventfd().context(WHAT)?),
            told: Arc::default(),
            grace: plan.grace,
            state: State::Waiting,
            shares_group: false,
            stop_asked: false,
            keeper_until: None,
            command: None,
            spared,
            events: VecDeque::new(),
            buffer: vec![0; REPORT_MOST],
        })
    }

    /// Has the keeper start the command. How that went comes from [`wait`](Self::wait):
    /// [`Event::Started`], or [`Event::Ended`] with [`How::StartFailed`].
    ///
    /// In the foreground of a terminal the command joins this process's group; elsewhere it leads
    /// one of its own.
    ///
    /// # Errors
    /// It was started before, the environment's additions are too large or not valid, there are
    /// too many descriptors, or the keeper is gone (`EPIPE`).
    pub fn start(&mut self, start: &Start<'_>) -> Result<()> {
        const WHAT: &str = "cannot start the command";
        if self.state != State::Waiting {
            return Err(Error::invalid(WHAT, "it was started before"));
        }
        let mut env_set = Vec::with_capacity(start.env_set.len());
        for (name, value) in &start.env_set {
            env_set.push(env_entry(name, value)?);
        }
        let env_remove = start.env_remove.iter().map(|name| name.as_bytes().to_vec()).collect();
        if env_set.iter().map(Vec::len).sum::<usize>() > ENV_MOST {
            return Err(Error::invalid(WHAT, "more than 96 KiB are added to its environment"));
        }
        self.shares_group = sys::terminal_group() == Some(sys::own_group());
        let message = ToKeeper::Start {
            deadline: start.deadline.map(|deadline| (deadline.clock, deadline.at_ns)),
            sent_at: start.deadline.map_or(0, |deadline| deadline.clock.now_ns()),
            group: if self.shares_group { sys::own_group() } else { 0 },
            env_set,
            env_remove,
        };
        let message = message.encode();
        if message.len() > MESSAGE_MOST {
            return Err(Error::invalid(WHAT, "too much is taken from its environment"));
        }
        let early = self.signals_so_far();
        sys::send(self.socket.as_fd(), &message, &start.descriptors, true).context(WHAT)?;
        if let Some(deadline) = start.deadline {
            self.told.set(deadline);
        }
        self.state = State::Starting;
        for signal in early {
            // It cannot have reached the command, wherever it came from.
            self.forward(signal.number);
            self.show(signal);
        }
        if start.release_stdio {
            sys::null_over(&[0, 1]);
        }
        Ok(())
    }

    /// A handle that tells the keeper new deadlines.
    #[must_use]
    pub fn deadlines(&self) -> DeadlineSender {
        DeadlineSender { socket: Arc::clone(&self.socket), told: Arc::clone(&self.told) }
    }

    /// A handle that wakes [`wait`](Self::wait).
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.wake))
    }

    /// The command's process id, once [`Event::Started`] has come and until it has ended.
    #[must_use]
    pub fn command_pid(&self) -> Option<i32> {
        match self.state {
            State::Running(pid) => Some(pid),
            _ => None,
        }
    }

    /// The keeper's process id.
    #[must_use]
    pub fn keeper_pid(&self) -> i32 {
        self.keeper_pid
    }

    /// See [`Signals::end_at_once`].
    pub fn end_at_once(&self) {
        self.signals.end_at_once();
    }

    /// Ends the command's whole tree now: TERM, the grace as far as the deadline leaves it, KILL.
    /// [`Event::Ended`] comes when it is gone. Before the start it does nothing.
    pub fn end(&mut self, reason: Reason) {
        if !matches!(self.state, State::Starting | State::Running(_)) {
            return;
        }
        // A keeper that does not listen or is gone is the watchdog's, and `wait`'s, to see.
        let _ = sys::send(self.socket.as_fd(), &ToKeeper::End(reason).encode(), &[], false);
        let mut left = self.grace;
        if let Some(clock) = self.told.clock() {
            let at_ns = self.told.at_ns.load(Ordering::Acquire);
            left = left.min(Duration::from_nanos(at_ns.saturating_sub(clock.now_ns())));
        }
        let until = Instant::now() + left.saturating_add(KEEPER_LATE).min(DAYS);
        self.keeper_until = Some(self.keeper_until.map_or(until, |before| before.min(until)));
    }
}

/// Longer than any grace, and short enough to be added to an `Instant`.
const DAYS: Duration = Duration::from_secs(100 * 86_400);

impl Drop for Front {
    fn drop(&mut self) {
        sys::shut_down(self.socket.as_fd());
        if matches!(self.state, State::Starting | State::Running(_)) {
            let keeper = [Some(self.keeper.as_fd())];
            let _ = sys::poll_readable(keeper, Some(DROP_WAIT));
        }
    }
}

/// The parent of this process, seen to be its parent after it was opened.
fn watch_parent() -> Result<OwnedFd> {
    const WHAT: &str = "cannot watch the parent of this process";
    let parent = sys::getppid();
    if parent == 0 {
        return Err(Error::invalid(WHAT, "it is outside of this process namespace"));
    }
    let watched = sys::pidfd_open(parent).context(WHAT)?;
    if sys::getppid() == parent {
        Ok(watched)
    } else {
        Err(Error::invalid(WHAT, "it has ended already"))
    }
}

fn c_string(bytes: &OsStr) -> Result<CString> {
    CString::new(bytes.as_bytes())
        .map_err(|_| Error::invalid("cannot run the command", "a zero byte in its arguments"))
}

fn env_entry(name: &OsStr, value: &OsStr) -> Result<Vec<u8>> {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    if name.is_empty() || name.contains(&b'=') || name.contains(&0) || value.contains(&0) {
        let why = "an empty name, or an equals sign or a zero byte where none may be";
        return Err(Error::invalid("cannot set the command's environment", why));
    }
    Ok([name, b"=", value].concat())
}
