//! Processes: fork, wait, groups, the terminal.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check;

/// Which side of a fork this is.
pub(crate) enum Forked {
    Child,
    Parent(i32),
}

/// Forks. Refused while other threads run: the child would have their locks and not them.
pub(crate) fn fork() -> io::Result<Forked> {
    // Two links and one for each thread; where /proc is not mounted nothing can be said.
    if std::fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() != 3) {
        let why = "the keeper must be forked before any other thread runs";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // SAFETY: with a single thread the child may do whatever the parent may.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// This process's id.
pub(crate) fn getpid() -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::getpid() }
}

/// The parent's id.
pub(crate) fn getppid() -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::getppid() }
}

/// The id of this process's group.
pub(crate) fn own_group() -> i32 {
    // SAFETY: no memory is touched.
    unsafe { libc::getpgrp() }
}

/// Makes this process the leader of a group of its own.
pub(crate) fn set_group() {
    // SAFETY: no memory is touched. It fails for a session leader, which leads a group already.
    unsafe { libc::setpgid(0, 0) };
}

/// Orphans among this process's descendants become its children.
pub(crate) fn be_subreaper() -> io::Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })?;
    Ok(())
}

/// Sets the name that `ps` and `pkill` see.
pub(crate) fn set_name(name: &CStr) {
    // SAFETY: the name is a C string; the kernel copies at most 16 bytes of it.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
}

/// Puts this process before what it has to end, where it is allowed to.
pub(crate) fn raise_priority() {
    // SAFETY: no memory is touched.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
}

/// What `wait_any` saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    Exited {
        pid: i32,
        code: i32,
    },
    Signaled {
        pid: i32,
        signal: i32,
    },
    Stopped {
        pid: i32,
        signal: i32,
    },
    Continued {
        pid: i32,
    },
    /// There are children, and none has changed.
    Nothing,
    /// There are no children.
    NoChildren,
}

/// The next change among the children, without waiting; ended ones are gone after it.
pub(crate) fn wait_any() -> Waited {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED | libc::WNOHANG;
    // SAFETY: `info` is ours to write to, zeroed so that "nothing" reads as process 0; its fields
    // for a child are valid after a successful wait.
    unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), options) == -1 {
            return Waited::NoChildren;
        }
        let info = info.assume_init();
        let (pid, status) = (info.si_pid(), info.si_status());
        match (pid, info.si_code) {
            (0, _) => Waited::Nothing,
            (_, libc::CLD_EXITED) => Waited::Exited { pid, code: status },
            (_, libc::CLD_STOPPED | libc::CLD_TRAPPED) => Waited::Stopped { pid, signal: status },
            (_, libc::CLD_CONTINUED) => Waited::Continued { pid },
            _ => Waited::Signaled { pid, signal: status },
        }
    }
}

/// The environment of this process, byte for byte.
pub(crate) fn environment() -> Vec<CString> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut entries = Vec::with_capacity(64);
    // SAFETY: the list of C strings that ends with null; nobody changes it, for the keeper, the
    // only caller, has one thread.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            entries.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    entries
}

/// Signals a process.
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is touched.
    check(unsafe { libc::kill(pid, signal) })?;
    Ok(())
}

/// Signals a process group.
pub(crate) fn kill_group(group: i32, signal: i32) -> io::Result<()> {
    kill(-group, signal)
}

/// A descriptor for a process, readable when it has ended.
pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is touched, and the descriptor, close-on-exec, is ours.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match i32::try_from(fd) {
            Ok(fd) if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Signals the process of a descriptor, and no other that has its number by now.
pub(crate) fn pidfd_signal(process: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let none = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: no memory is touched.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, none, 0) };
    if sent == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the effective user may execute `file`.
pub(crate) fn may_execute(file: &Path) -> bool {
    let Ok(path) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a C string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// The foreground group of this process's controlling terminal, if it has one.
pub(crate) fn terminal_group() -> Option<i32> {
    let of = |fd| {
        // SAFETY: no memory is touched.
        let group = unsafe { libc::tcgetpgrp(fd) };
        (group > 0).then_some(group)
    };
    (0..3).find_map(of).or_else(|| terminal_open().and_then(|tty| of(tty.as_raw_fd())))
}

/// Makes `group` the foreground group of the controlling terminal.
pub(crate) fn terminal_give(group: i32) {
    if let Some(tty) = terminal_open() {
        // SAFETY: no memory is touched.
        unsafe { libc::tcsetpgrp(tty.as_raw_fd(), group) };
    }
}

/// The controlling terminal.
fn terminal_open() -> Option<OwnedFd> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the path is a C string, and a descriptor is ours.
    unsafe {
        let fd = libc::open(c"/dev/tty".as_ptr(), flags);
        (fd != -1).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// Leaves no core file.
pub(crate) fn no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// Ends this process at once: no destructor runs.
pub(crate) fn process_exit(code: i32) -> ! {
    // SAFETY: nothing of the process is used afterwards.
    unsafe { libc::_exit(code) }
}
