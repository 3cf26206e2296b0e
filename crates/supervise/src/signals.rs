//! Signals of this process: blocked early, read from a descriptor, and died of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::{Context, Result};
use crate::plan::Signal;
use crate::sys;

/// What asks a program to end, and what is passed on to the command.
const PASSED: [i32; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGTSTP,
    libc::SIGCONT,
];

/// Has a write beyond a limit on the size of files (`ulimit -f`) fail, and not end this process
/// without a word. The command finds the signal as it was.
pub fn outlive_file_limit() {
    sys::outlive(libc::SIGXFSZ);
}

/// The signals of this process, blocked and read from a descriptor: HUP INT QUIT TERM USR1 USR2
/// WINCH TSTP CONT, less those that were ignored when it began, and CHLD.
///
/// Take it before any other thread exists, so that none of them has the signals unblocked.
/// Dropping it leaves the signals blocked. [`Front`](crate::Front) has one of its own; this is
/// for commands without a keeper.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// Blocks the signals and begins to collect them.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn take() -> Result<Self> {
        // An ignored SIGCHLD would let children vanish unseen.
        sys::default_disposition(libc::SIGCHLD);
        let passed = PASSED.into_iter().filter(|signal| !sys::is_ignored(*signal));
        let set = sys::SigSet::of(passed.chain([libc::SIGCHLD]));
        sys::block(&set);
        Ok(Self { fd: sys::signal_fd(&set).context("cannot open a signal descriptor")? })
    }

    /// The next signal that came, if one did; CHLD included.
    #[must_use]
    pub fn next(&self) -> Option<Signal> {
        sys::signal_read(self.fd.as_fd())
    }

    /// From here on a HUP, INT, QUIT or TERM ends the process at once with 128+N, even while it is
    /// blocked in a call: for the second one, after the first was acted on.
    pub fn end_at_once(&self) {
        let ending = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
        let ending = ending.into_iter().filter(|signal| !sys::is_ignored(*signal));
        let ending: Vec<i32> = ending.collect();
        for signal in &ending {
            sys::exit_on(*signal);
        }
        sys::unblock(&sys::SigSet::of(ending));
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Ends this process by `signal`, so that its parent sees what ended the command; leaves no core.
/// Where the signal does not end it (as process 1) it exits with 128+N.
pub fn die_by(signal: i32) -> ! {
    sys::no_core();
    sys::default_disposition(signal);
    sys::unblock(&sys::SigSet::of([signal]));
    sys::raise(signal);
    sys::process_exit(128 + signal)
}

/// Stops this process as `signal` (TSTP, TTIN, TTOU or STOP) does, and returns when it goes on.
/// A group that no shell could continue is not stopped, as the system has it.
pub(crate) fn stop_by(signal: i32) {
    // Sent to the process while it is blocked, it is one with what the terminal may have sent and
    // was not read yet; else each would stop it, and it would have to be continued twice.
    let only = sys::SigSet::of([signal]);
    let before = sys::block(&only);
    let _ = sys::kill(sys::getpid(), signal);
    sys::unblock(&only);
    sys::restore_mask(&before);
}

/// Another process, which cannot be mistaken for one that has its number later.
#[derive(Debug)]
pub struct Process {
    fd: OwnedFd,
}

impl Process {
    /// The process that has the number `pid` now.
    ///
    /// # Errors
    /// `ESRCH`: there is none.
    pub fn open(pid: i32) -> Result<Self> {
        Ok(Self { fd: sys::pidfd_open(pid).context("cannot watch the process")? })
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// `ESRCH`: it has ended. `EPERM`: it is another user's.
    pub fn signal(&self, signal: i32) -> Result<()> {
        sys::pidfd_signal(self.fd.as_fd(), signal).context("cannot signal the process")
    }
}

/// Readable when the process has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until one of `descriptors` can be read or is at its end, and says which; all false after
/// `timeout`.
///
/// # Errors
/// The system refused to poll.
pub fn wait_readable<const N: usize>(
    descriptors: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    sys::poll_readable(descriptors, timeout)
}
