//! Descriptors: the socket between front and keeper, timers, wake-ups, poll.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::{check, clock_id};
use crate::time::ClockKind;

/// The most descriptors in one message.
const DESCRIPTORS_MOST: usize = 4;

// SAFETY: called with a descriptor that a system call has just made for us.
unsafe fn owned(fd: RawFd) -> OwnedFd {
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Two connected sockets that keep messages whole.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `fds` has room for two descriptors, which are ours on success.
    unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()))?;
        Ok((owned(fds[0]), owned(fds[1])))
    }
}

/// Room for the ancillary data of a message, aligned as its header must be.
#[repr(C)]
union Control {
    _align: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Sends one message, with descriptors. With `wait` it waits for room, else it fails with
/// `WouldBlock`.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    message: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> io::Result<()> {
    if descriptors.len() > DESCRIPTORS_MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut part =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = Control { bytes: [0; 64] };
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let flags = libc::MSG_NOSIGNAL | if wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the header points at the message and at a control buffer with room for four
    // descriptors (CMSG_SPACE(16) is 32 of its 64 bytes), which live until the call returns;
    // `sendmsg` writes to neither.
    let sent = unsafe {
        let mut header = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !raw.is_empty() {
            let bytes = u32::try_from(size_of_val(raw.as_slice())).unwrap_or(0);
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            std::ptr::copy_nonoverlapping(raw.as_ptr(), data, raw.len());
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const header, flags)
    };
    if sent == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a socket had.
pub(crate) enum Received {
    /// A message of this many bytes, and the descriptors that came with it.
    Message(usize, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// Takes one message without waiting.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Received {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control { bytes: [0; 64] };
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points at two buffers of ours with their sizes; the kernel's own macros
    // walk the control data it wrote, and each descriptor found there is ours.
    unsafe {
        let mut header = MaybeUninit::<libc::msghdr>::zeroed().assume_init();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of::<Control>() as _;
        let got = libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags);
        let Ok(got) = usize::try_from(got) else {
            return match io::Error::last_os_error().kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Received::Nothing,
                _ => Received::Closed,
            };
        };
        let mut descriptors = Vec::new();
        let mut next = libc::CMSG_FIRSTHDR(&raw const header);
        while !next.is_null() {
            if (*next).cmsg_level == libc::SOL_SOCKET && (*next).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                for i in 0..bytes / size_of::<RawFd>() {
                    descriptors.push(owned(data.add(i).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(&raw const header, next);
        }
        // No message of ours is empty: nothing read is the end.
        if got == 0 { Received::Closed } else { Received::Message(got, descriptors) }
    }
}

/// Ends a connection for both sides, whoever else holds the socket.
pub(crate) fn shut_down(socket: BorrowedFd<'_>) {
    // SAFETY: no memory is touched.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// A timer on `clock`.
pub(crate) fn timer_new(clock: ClockKind) -> io::Result<OwnedFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: no memory is touched, and the descriptor is ours.
    unsafe { Ok(owned(check(libc::timerfd_create(clock_id(clock), flags))?)) }
}

/// Sets the timer to an absolute time, or takes it off.
pub(crate) fn timer_arm(timer: BorrowedFd<'_>, at_ns: Option<u64>) -> io::Result<()> {
    const SECOND_NS: u64 = 1_000_000_000;
    // Zero would take the timer off: a time that is past rings at once with one nanosecond.
    let at_ns = at_ns.map_or(0, |at| at.max(1));
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec {
        tv_sec: (at_ns / SECOND_NS).cast_signed(),
        tv_nsec: (at_ns % SECOND_NS).cast_signed(),
    };
    let spec = libc::itimerspec { it_interval: zero, it_value: value };
    let flags = libc::TFD_TIMER_ABSTIME;
    // SAFETY: `spec` is valid, and no old value is asked for.
    check(unsafe {
        libc::timerfd_settime(timer.as_raw_fd(), flags, &raw const spec, std::ptr::null_mut())
    })?;
    Ok(())
}

/// Takes the ring off a timer.
pub(crate) fn timer_clear(timer: BorrowedFd<'_>) {
    eventfd_clear(timer);
}

/// A counter that `poll` can wait on.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no memory is touched, and the descriptor is ours.
    unsafe { Ok(owned(check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?)) }
}

/// Makes the counter readable.
pub(crate) fn eventfd_raise(fd: BorrowedFd<'_>) {
    let one = 1_u64;
    // SAFETY: eight bytes of ours are read. It can only fail when the counter is full, and then
    // it is readable.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Makes the counter unreadable; whether it was readable.
pub(crate) fn eventfd_clear(fd: BorrowedFd<'_>) -> bool {
    let mut count = 0_u64;
    // SAFETY: eight bytes of ours are written.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
}

/// Waits until one of the descriptors can be read (or its other side is gone), and says which.
pub(crate) fn poll_readable<const N: usize>(
    descriptors: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = descriptors.map(|fd| libc::pollfd {
        // A negative number is passed over.
        fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: libc::time_t::try_from(t.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array and its length belong together, and the timeout lives until the end.
    let got = check(unsafe {
        libc::ppoll(polled.as_mut_ptr(), N as libc::nfds_t, pointer, std::ptr::null())
    });
    match got {
        Ok(_) => Ok(polled.map(|p| p.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// Moves a descriptor to a high number, out of the way of the ones a command expects; still
/// close-on-exec. Where the limit leaves no room it stays where it is.
pub(crate) fn place_high(fd: OwnedFd) -> OwnedFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours to write to.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let from = i32::try_from(limit.rlim_cur.min(1024)).unwrap_or(1024) - 64;
    if from <= fd.as_raw_fd() {
        return fd;
    }
    // SAFETY: no memory is touched, and a new descriptor is ours.
    unsafe {
        match libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, from) {
            -1 => fd,
            high => owned(high),
        }
    }
}

/// Puts `/dev/null` over the descriptors of `numbers`.
pub(crate) fn null_over(numbers: &[RawFd]) {
    // SAFETY: the path is a C string. The descriptors 0 to 2 belong to the process as a whole,
    // and stay open throughout.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if null != -1 {
            for number in numbers {
                libc::dup2(null, *number);
            }
            libc::close(null);
        }
    }
}
