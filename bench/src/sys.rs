//! What only the operating system's own interface tells.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the clock that all processes of the machine share.
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// How a child ended, and the most memory that it, or what it waited for, had at once.
pub(crate) struct Reaped {
    pub(crate) succeeded: bool,
    pub(crate) peak_kib: f64,
}

/// Waits for a child of this process.
pub(crate) fn reap(child: u32) -> io::Result<Reaped> {
    let pid = i32::try_from(child).map_err(io::Error::other)?;
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both point to writable memory of the right types, which outlives the call.
        if unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) } == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all zeroes are a valid `rusage`, and the call has filled it in.
    let usage = unsafe { usage.assume_init() };
    let succeeded = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    Ok(Reaped { succeeded, peak_kib: usage.ru_maxrss as f64 })
}

/// How often the threads of this process have gone to sleep by themselves.
pub(crate) fn sleeps() -> io::Result<i64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it points to writable memory of the right type, which outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeroes are a valid `rusage`, and the call has filled it in.
    Ok(unsafe { usage.assume_init() }.ru_nvcsw)
}

/// How long this process has worked, in seconds.
pub(crate) fn cpu_seconds() -> io::Result<f64> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it points to writable memory of the right type, which outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeroes are a valid `rusage`, and the call has filled it in.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}
