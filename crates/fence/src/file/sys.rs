//! The one call that the safe crates do not offer: open-file-description locks.
//!
//! Why these: a classic POSIX lock (what `rustix` offers for byte ranges) belongs to the process,
//! so two fences of one process do not exclude each other, and it is dropped when *any* descriptor
//! of the file is closed; `flock` locks whole files only, and the gate needs two bytes.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use leasehold_core::Access;

#[cfg(not(all(target_env = "gnu", target_pointer_width = "32")))]
use libc::flock;
/// glibc for 32-bit machines reads the 64-bit layout for these commands.
#[cfg(all(target_env = "gnu", target_pointer_width = "32"))]
use libc::flock64 as flock;

/// Locks one byte if nobody else's lock is in the way, and says whether it did.
///
/// Shared locks go together; a shared one needs a descriptor open for reading, an exclusive one a
/// descriptor open for writing. Lasts until [`unlock`] or until the last descriptor that shares
/// this open file description, a forked child's included, is closed.
pub(super) fn try_lock(file: &File, byte: u8, access: Access) -> io::Result<bool> {
    let kind = match access {
        Access::Exclusive => libc::F_WRLCK,
        Access::Shared => libc::F_RDLCK,
    };
    match set(file, byte, kind) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives up the lock on one byte, for every process that shares it.
pub(super) fn unlock(file: &File, byte: u8) -> io::Result<()> {
    set(file, byte, libc::F_UNLCK)
}

fn set(file: &File, byte: u8, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: `flock` is a C struct of integers, for which all zeroes is a value; the kernel
    // demands a zero `l_pid` here.
    let mut range: flock = unsafe { std::mem::zeroed() };
    // Both constants are below 4 on every Linux.
    #[allow(clippy::cast_possible_truncation)]
    {
        range.l_type = kind as libc::c_short;
        range.l_whence = libc::SEEK_SET as libc::c_short;
    }
    range.l_start = byte.into();
    range.l_len = 1;
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed, and the kernel reads one
        // `flock` behind a pointer that is valid for the call.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
        if answer != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
