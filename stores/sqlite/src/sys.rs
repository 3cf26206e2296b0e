//! The one place of this crate that is `unsafe`: locks of open file descriptions.
//!
//! Such a lock belongs to the open file, not to the process: it is inherited by fork and exec with
//! the descriptor, and it ends when the last descriptor of that open file is closed.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn one_byte(kind: libc::c_int, byte: u64) -> io::Result<libc::flock> {
    let start = libc::off_t::try_from(byte).map_err(|_| io::ErrorKind::InvalidInput)?;
    let too_wide = |_| io::Error::from(io::ErrorKind::InvalidInput);
    Ok(libc::flock {
        l_type: libc::c_short::try_from(kind).map_err(too_wide)?,
        l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(too_wide)?,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    })
}

/// Takes the write lock of one byte if nobody else has it; whether it was taken.
pub(crate) fn lock_byte(file: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let lock = one_byte(libc::F_WRLCK, byte)?;
    // SAFETY: the descriptor is open while it is borrowed, and `lock` is a whole `flock` that the
    // kernel only reads during the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether another open file has the write lock of this byte. Takes no lock itself.
pub(crate) fn is_locked(file: BorrowedFd<'_>, byte: u64) -> io::Result<bool> {
    let mut lock = one_byte(libc::F_RDLCK, byte)?;
    // SAFETY: the descriptor is open while it is borrowed, and `lock` is a whole `flock` that the
    // kernel reads and overwrites during the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
