//! Signals: sets, masks, dispositions, and reading them from a descriptor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;
use crate::plan::Signal;

/// A set of signals.
#[derive(Clone, Copy)]
pub(crate) struct SigSet(libc::sigset_t);

impl SigSet {
    /// The signals of `numbers`.
    pub(crate) fn of(numbers: impl IntoIterator<Item = i32>) -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is ours; `sigemptyset` makes it valid and `sigaddset` refuses numbers
        // that are no signals.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for number in numbers {
                libc::sigaddset(set.as_mut_ptr(), number);
            }
            Self(set.assume_init())
        }
    }

    /// Every signal.
    pub(crate) fn all() -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the set is ours and `sigfillset` makes it valid.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }
}

fn mask(how: libc::c_int, set: &SigSet) -> SigSet {
    let mut old = SigSet::of([]);
    // SAFETY: both sets are valid. It fails only on an unknown `how`.
    unsafe { libc::pthread_sigmask(how, &raw const set.0, &raw mut old.0) };
    old
}

/// Blocks the signals of `set`; what was blocked before.
pub(crate) fn block(set: &SigSet) -> SigSet {
    mask(libc::SIG_BLOCK, set)
}

/// Lets the signals of `set` through; what was blocked before.
pub(crate) fn unblock(set: &SigSet) -> SigSet {
    mask(libc::SIG_UNBLOCK, set)
}

/// Blocks exactly the signals of `set`.
pub(crate) fn restore_mask(set: &SigSet) {
    mask(libc::SIG_SETMASK, set);
}

/// What happens on `signal` now.
pub(super) fn disposition(signal: i32) -> libc::sighandler_t {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action the call only writes the old one; all zeros is a valid action.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr());
        old.assume_init().sa_sigaction
    }
}

/// Whether `signal` is ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    disposition(signal) == libc::SIG_IGN
}

pub(super) fn set_disposition(signal: i32, handler: libc::sighandler_t) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeros is a valid action with an empty mask; `handler` is `SIG_DFL`, `SIG_IGN`
    // or a function that only calls what is safe in a handler.
    unsafe {
        (*action.as_mut_ptr()).sa_sigaction = handler;
        libc::sigaction(signal, action.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets the system do on `signal` what it does by default.
pub(crate) fn default_disposition(signal: i32) {
    set_disposition(signal, libc::SIG_DFL);
}

extern "C" fn exit_by(signal: libc::c_int) {
    // SAFETY: `_exit` may be called in a handler.
    unsafe { libc::_exit(128 + signal) }
}

/// Ends the process at once with 128+N on `signal`.
pub(crate) fn exit_on(signal: i32) {
    set_disposition(signal, exit_by as *const () as libc::sighandler_t);
}

extern "C" fn nothing(_signal: libc::c_int) {}

/// Does nothing on `signal`, unless it is ignored already. A program that is executed finds what
/// was there before: unlike an ignored signal, one with a handler is reset.
pub(crate) fn outlive(signal: i32) {
    if disposition(signal) == libc::SIG_DFL {
        set_disposition(signal, nothing as *const () as libc::sighandler_t);
    }
}

/// Sends `signal` to this thread.
pub(crate) fn raise(signal: i32) {
    // SAFETY: no memory is touched; what the signal does is the caller's wish.
    unsafe { libc::raise(signal) };
}

/// A descriptor that reads the blocked signals of `set`.
pub(crate) fn signal_fd(set: &SigSet) -> io::Result<OwnedFd> {
    // SAFETY: the set is valid.
    let fd = check(unsafe {
        libc::signalfd(-1, &raw const set.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    })?;
    // SAFETY: the call made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next signal of a signal descriptor.
pub(crate) fn signal_read(fd: BorrowedFd<'_>) -> Option<Signal> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the buffer has room for the one record that is asked for.
    let got = unsafe { libc::read(fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
    if usize::try_from(got) != Ok(size) {
        return None;
    }
    // SAFETY: the record is whole, and any bytes are a valid one.
    let info = unsafe { info.assume_init() };
    Some(Signal {
        number: info.ssi_signo.cast_signed(),
        from_terminal: info.ssi_code == libc::SI_KERNEL,
        sender: info.ssi_pid.cast_signed(),
    })
}
