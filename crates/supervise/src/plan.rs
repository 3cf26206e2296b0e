//! What the caller asks for, and what it is told.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::time::Deadline;

/// What the keeper must know when it is forked. All of it is known once the command line is read.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The file to execute, as [`lookup`](crate::lookup) found it.
    pub program: PathBuf,
    /// The arguments, the program's name first, as bytes.
    pub args: Vec<OsString>,
    /// The time between TERM and KILL. It is cut to a third of what each deadline leaves.
    pub grace: Duration,
    /// What to do when the deadline comes.
    pub on_deadline: OnDeadline,
    /// The run ends only when the command's whole tree is gone.
    pub wait_all: bool,
    /// The command ends when the parent of this process ends.
    pub with_parent: bool,
}

impl Plan {
    /// A plan with the defaults: 5 s of grace, [`OnDeadline::Kill`], neither `wait_all` nor
    /// `with_parent`.
    #[must_use]
    pub const fn new(program: PathBuf, args: Vec<OsString>) -> Self {
        Self {
            program,
            args,
            grace: Duration::from_secs(5),
            on_deadline: OnDeadline::Kill,
            wait_all: false,
            with_parent: false,
        }
    }
}

/// What the keeper does when the deadline comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeadline {
    /// TERM at the deadline less the grace, KILL before the deadline.
    Kill,
    /// Nothing but [`Event::DeadlinePassed`], once, at the deadline.
    Warn,
}

/// What the keeper is told once the grant is there: [`Front::start`](crate::Front::start).
#[derive(Debug, Default)]
pub struct Start<'a> {
    /// Variables the environment gains, or whose value changes. Limited to 96 KiB in all.
    pub env_set: Vec<(OsString, OsString)>,
    /// Variables that are taken away.
    pub env_remove: Vec<OsString>,
    /// The first deadline; `None` for a command that may run for ever.
    pub deadline: Option<Deadline>,
    /// Descriptors that the keeper keeps open until it ends, and that the command's tree inherits
    /// at a high number, not close-on-exec. At most four.
    pub descriptors: Vec<BorrowedFd<'a>>,
    /// Replace this process's stdin and stdout by `/dev/null` once the command has them, so that
    /// a pipe ends when the command closes it. Move what you still need away first.
    pub release_stdio: bool,
}

/// Why the tree was ended by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The deadline came.
    Deadline,
    /// The caller said that the lease is lost.
    Lost,
    /// The caller asked for it, for another reason.
    Asked,
    /// The front's parent ended, with `with_parent`.
    ParentEnded,
    /// The front died. Nobody is left to be told.
    FrontGone,
    /// The keeper died, and the front ended the tree.
    KeeperGone,
}

/// How the command itself ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signaled(i32),
    /// It could not be executed: the error number of `execve` (or `clone`).
    StartFailed(i32),
    /// It could not be ended: it runs as another user.
    StillRunning,
    /// Nobody saw it end (the keeper died).
    Unknown,
}

impl How {
    /// The exit code that says this: its own, 128+N, 126 or 127; `None` where there is none.
    #[must_use]
    pub const fn code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled(signal) => Some(128 + signal),
            Self::StartFailed(libc::ENOENT) => Some(127),
            Self::StartFailed(_) => Some(126),
            Self::StillRunning | Self::Unknown => None,
        }
    }
}

/// How it all ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// How the command ended.
    pub how: How,
    /// Why it was ended by force; `None` when it ended by itself.
    pub forced: Option<Reason>,
    /// The deadline had passed before the command was seen to end: its right ended before the
    /// work did (also with [`OnDeadline::Warn`]).
    pub deadline_passed: bool,
    /// Nothing of the command's tree is left. Always true after force, unless `unkillable` names
    /// what is; false after an end by itself that left something running.
    pub tree_gone: bool,
    /// Processes that run as another user and could not be signalled.
    pub unkillable: Vec<i32>,
}

/// What [`Front::wait`](crate::Front::wait) returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A signal came to this process. Before the start it is for the caller to act on; after it
    /// the command has it already.
    Signal(Signal),
    /// [`Waker::wake`](crate::Waker::wake) was called.
    Woken,
    /// The time given to `wait` is over.
    TimedOut,
    /// This process was stopped, and has been continued.
    Resumed,
    /// The command runs, with this process id.
    Started(i32),
    /// The deadline passed, and the command was left running ([`OnDeadline::Warn`]).
    DeadlinePassed,
    /// The keeper has begun to end the tree.
    Ending(Reason),
    /// The parent of this process ended (`with_parent`); a running command is being ended.
    ParentEnded,
    /// It is over. Nothing comes after it.
    Ended(Ended),
}

/// A signal that this process was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// The terminal sent it, to the whole foreground group.
    pub from_terminal: bool,
    /// Who sent it; 0 for the kernel and for a process of an outer namespace.
    pub sender: i32,
}

impl Signal {
    /// Whether this signal asks a program to end (HUP, INT, QUIT, TERM).
    #[must_use]
    pub const fn asks_to_end(&self) -> bool {
        matches!(self.number, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM)
    }
}
