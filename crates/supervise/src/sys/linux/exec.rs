//! Starting the command by hand: `std::process::Command` would reset SIGPIPE and open closed
//! descriptors, and tells the child's id to nobody before it runs.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::check;
use super::found::Inherited;
use super::signals::set_disposition;

/// Room for the child between `clone` and `execve`.
const STACK_BYTES: usize = 64 * 1024;
/// Digits of the largest process id, and the zero.
const PID_ROOM: usize = 12;

/// The program, its arguments and its environment, as `execve` takes them.
pub(crate) struct Image {
    path: CString,
    args: Vec<CString>,
    env: Vec<CString>,
    /// Entries `NAME=` to which the child adds its own id.
    own_pid: Vec<CString>,
}

impl Image {
    pub(crate) const fn new(
        path: CString,
        args: Vec<CString>,
        env: Vec<CString>,
        own_pid: Vec<CString>,
    ) -> Self {
        Self { path, args, env, own_pid }
    }
}

/// How the command is to stand in the world.
pub(crate) struct Spawn<'a> {
    /// The group it joins; 0 for one of its own.
    pub(crate) group: i32,
    /// What this program found, which the command is to find too.
    pub(crate) found: Inherited,
    /// Descriptors it inherits at the number they have here.
    pub(crate) keep: &'a [OwnedFd],
}

/// What the child reads and writes of its parent's memory.
struct Shared<'a> {
    spawn: &'a Spawn<'a>,
    keep: Vec<RawFd>,
    parent: i32,
    path: &'a CStr,
    argv: Vec<*const c_char>,
    shell_argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// Buffers of `NAME=` with room for digits, and where the digits go.
    own_pid: Vec<(Vec<u8>, usize)>,
    errno: i32,
}

/// Starts the command; its process id, or the error number of what failed. When this returns the
/// command's program has replaced the child: the child borrows this process's memory until then.
pub(crate) fn spawn(image: &Image, spawn: &Spawn<'_>) -> Result<i32, i32> {
    let list = |first: &[&CStr], rest: &[CString]| -> Vec<*const c_char> {
        let first = first.iter().map(|s| s.as_ptr());
        first.chain(rest.iter().map(|s| s.as_ptr())).chain([std::ptr::null()]).collect()
    };
    let mut own_pid: Vec<(Vec<u8>, usize)> = Vec::with_capacity(image.own_pid.len());
    for entry in &image.own_pid {
        let mut bytes = entry.as_bytes().to_vec();
        let at = bytes.len();
        bytes.resize(at + PID_ROOM, 0);
        own_pid.push((bytes, at));
    }
    let mut envp = list(&[], &image.env);
    envp.pop();
    envp.extend(own_pid.iter().map(|(bytes, _)| bytes.as_ptr().cast::<c_char>()));
    envp.push(std::ptr::null());
    let mut shared = Shared {
        spawn,
        keep: spawn.keep.iter().map(AsRawFd::as_raw_fd).collect(),
        parent: super::getpid(),
        path: &image.path,
        argv: list(&[], &image.args),
        shell_argv: list(&[c"/bin/sh", &image.path], image.args.get(1..).unwrap_or(&[])),
        envp,
        own_pid,
        errno: 0,
    };
    let mut stack: Vec<u128> = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: as in `posix_spawn`, the child runs on a stack of its own (16-byte aligned, of which
    // the end is passed since it grows down), with this process, which has one thread, asleep
    // until the child has executed or ended: `shared` and the stack outlive the child's use of
    // them. The child only makes system calls, allocates nothing and cannot unwind; every signal
    // is blocked until just before it executes.
    let pid = unsafe {
        let top = stack.as_mut_ptr().byte_add(STACK_BYTES);
        let argument = (&raw mut shared).cast::<c_void>();
        check(libc::clone(child, top.cast(), flags, argument))
    };
    let pid = pid.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    // The child wrote it behind the compiler's back.
    // SAFETY: the field is initialised, and the child is gone from this memory.
    let errno = unsafe { (&raw const shared.errno).read_volatile() };
    if errno == 0 { Ok(pid) } else { Err(errno) }
}

extern "C" fn child(argument: *mut c_void) -> libc::c_int {
    // SAFETY: `spawn` passes its own `Shared`, and does nothing until we are done with it.
    let shared = unsafe { &mut *argument.cast::<Shared<'_>>() };
    let found = &shared.spawn.found;
    // SAFETY: only system calls on numbers, and on C strings and lists that end with null, which
    // `spawn` keeps alive; `execve` returns only on failure.
    unsafe {
        libc::setpgid(0, shared.spawn.group);
        // When the keeper and the front are both killed at once, at least the command goes too.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != shared.parent {
            libc::_exit(127);
        }
        for fd in &shared.keep {
            libc::fcntl(*fd, libc::F_SETFD, 0);
        }
        write_pids(&mut shared.own_pid, libc::getpid());
        for (fd, closed) in (0..).zip(found.closed) {
            if closed {
                libc::close(fd);
            }
        }
        set_disposition(libc::SIGPIPE, found.sigpipe);
        set_disposition(libc::SIGCHLD, found.sigchld);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const found.mask, std::ptr::null_mut());
        libc::execve(shared.path.as_ptr(), shared.argv.as_ptr(), shared.envp.as_ptr());
        let mut errno = *libc::__errno_location();
        // A script without a first line that names its interpreter is the shell's.
        if errno == libc::ENOEXEC {
            let shell = c"/bin/sh".as_ptr();
            libc::execve(shell, shared.shell_argv.as_ptr(), shared.envp.as_ptr());
            errno = libc::ENOEXEC;
        }
        (&raw mut shared.errno).write_volatile(errno);
        libc::_exit(127)
    }
}

/// Writes `pid` in decimal into each buffer, with nothing that allocates or panics.
fn write_pids(buffers: &mut [(Vec<u8>, usize)], pid: i32) {
    let mut digits = [0_u8; PID_ROOM];
    let mut rest = pid.unsigned_abs();
    let mut used = 0;
    for slot in &mut digits {
        *slot = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        used += 1;
        if rest == 0 {
            break;
        }
    }
    for (buffer, at) in buffers {
        let room = buffer.iter_mut().skip(*at);
        for (slot, digit) in room.zip(digits.iter().take(used).rev()) {
            *slot = *digit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_is_written_in_decimal() {
        for pid in [1, 10, 4_194_304, i32::MAX] {
            let mut buffers = vec![(b"X=".iter().copied().chain([0; PID_ROOM]).collect(), 2)];
            write_pids(&mut buffers, pid);
            let text = CStr::from_bytes_until_nul(&buffers[0].0).expect("ends");
            assert_eq!(text.to_str(), Ok(format!("X={pid}").as_str()));
        }
    }
}
