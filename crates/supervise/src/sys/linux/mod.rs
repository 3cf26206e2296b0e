//! Linux.

mod exec;
mod fds;
mod found;
mod process;
mod signals;

pub(crate) use exec::{Image, Spawn, spawn};
pub(crate) use fds::{
    Received, eventfd, eventfd_clear, eventfd_raise, null_over, pair, place_high, poll_readable,
    receive, send, shut_down, timer_arm, timer_clear, timer_new,
};
pub(crate) use found::inherited;
pub(crate) use process::{
    Forked, Waited, be_subreaper, environment, fork, getpid, getppid, kill, kill_group,
    may_execute, no_core, own_group, pidfd_open, pidfd_signal, process_exit, raise_priority,
    set_group, set_name, terminal_give, terminal_group, wait_any,
};
pub(crate) use signals::{
    SigSet, block, default_disposition, exit_on, is_ignored, outlive, raise, restore_mask,
    signal_fd, signal_read, unblock,
};

use std::io;

use crate::time::ClockKind;

/// The system's id for a clock.
const fn clock_id(clock: ClockKind) -> libc::clockid_t {
    match clock {
        ClockKind::Monotonic => libc::CLOCK_MONOTONIC,
        ClockKind::Boot => libc::CLOCK_BOOTTIME,
    }
}

/// What `clock` reads, in nanoseconds.
pub(crate) fn clock_now_ns(clock: ClockKind) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to, and both clocks exist on every Linux that
    // this crate runs on; on failure it stays zero.
    unsafe { libc::clock_gettime(clock_id(clock), &raw mut now) };
    let (secs, nanos) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    secs.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The value of a call that says -1 on failure.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
