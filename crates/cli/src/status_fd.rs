//! The descriptor of `--status-fd`, copied so that no command inherits the copy.

use std::fs::File;
use std::io;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::exit::{End, usage};

/// A copy of the descriptor with this number, close-on-exec.
pub(crate) fn open(number: i32) -> Result<File, End> {
    copy(number).or_else(|_| reopen(number)).map_err(|error| {
        usage(format!("--status-fd {number} cannot be written to: {error}; want an open one"))
    })
}

/// Copies it as one process may copy another's: by number, and therefore safely.
fn copy(number: i32) -> io::Result<File> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let copied = pidfd_getfd(this, number, PidfdGetfdFlags::empty())?;
    Ok(File::from(copied))
}

/// Opens what it stands for anew, where copying is forbidden (some containers).
fn reopen(number: i32) -> io::Result<File> {
    File::options().append(true).open(format!("/proc/self/fd/{number}"))
}
