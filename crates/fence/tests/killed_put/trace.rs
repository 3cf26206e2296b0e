//! A child whose every system call the test sees, and at any of which it can be killed.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A system call that a fence's promise rests on, before it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    Write(PathBuf),
    Sync(PathBuf),
    Rename(String, String),
    Other,
}

pub(crate) struct Traced {
    pid: libc::pid_t,
}

/// Has the parent trace this process, and stops until it does.
pub(crate) fn trace_me() {
    // SAFETY: neither call touches memory.
    unsafe {
        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        libc::raise(libc::SIGSTOP);
    }
}

impl Traced {
    /// Starts this test program as a child, up to where it called [`trace_me`].
    #[allow(clippy::zombie_processes)] // Waited for by its pid.
    pub(crate) fn start(args: &[&str]) -> Traced {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(args)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let traced = Traced { pid: child.id().cast_signed() };
        assert!(traced.wait().is_some(), "the child has stopped itself");
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        // SAFETY: the child is stopped and traced by this thread; no memory is passed.
        unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, traced.pid, 0, options) };
        traced
    }

    /// Goes on to the next entry or exit of a system call; `None` when it has ended.
    pub(crate) fn step(&self) -> Option<Result<(), i32>> {
        // SAFETY: the child is stopped and traced by this thread; no memory is passed.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, self.pid, 0, 0) };
        self.wait()
    }

    /// `Ok` at a stop, `Err` with the signal at another; `None` when the child has ended well.
    fn wait(&self) -> Option<Result<(), i32>> {
        let mut status = 0;
        // SAFETY: the status is written to a variable that outlives the call.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        if libc::WIFEXITED(status) {
            assert_eq!(libc::WEXITSTATUS(status), 0, "the put of the child has failed");
            return None;
        }
        assert!(libc::WIFSTOPPED(status), "the child ended by itself: {status:#x}");
        Some(match libc::WSTOPSIG(status) {
            signal if signal == libc::SIGTRAP | 0x80 => Ok(()),
            signal => Err(signal),
        })
    }

    pub(crate) fn kill(self) {
        let mut status = 0;
        // SAFETY: the pid is that of a child that was not waited for; the status outlives the call.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(self.pid, &raw mut status, 0), self.pid);
        }
        assert!(libc::WIFSIGNALED(status), "killed: {status:#x}");
    }

    /// The call that the child is about to make, if it is at an entry.
    pub(crate) fn call(&self) -> Option<Call> {
        // SAFETY: a C struct of integers, and a union of such, for which all zeroes is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: the kernel writes at most `size` bytes to `info`.
        let got = unsafe {
            let at = (&raw mut info).cast::<c_void>();
            libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.pid, size, at)
        };
        assert!(got > 0, "read the system call: {}", std::io::Error::last_os_error());
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return None;
        }
        // SAFETY: `op` says that this member was written.
        let entry = unsafe { info.u.entry };
        let [a, b, c, d, ..] = entry.args;
        Some(match i64::try_from(entry.nr).unwrap() {
            libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_ftruncate => Call::Write(self.fd(a)),
            libc::SYS_sendfile => Call::Write(self.fd(a)),
            libc::SYS_copy_file_range => Call::Write(self.fd(c)),
            libc::SYS_fsync | libc::SYS_fdatasync => Call::Sync(self.fd(a)),
            libc::SYS_renameat | libc::SYS_renameat2 => Call::Rename(self.text(b), self.text(d)),
            _ => Call::Other,
        })
    }

    fn fd(&self, fd: u64) -> PathBuf {
        std::fs::read_link(Path::new("/proc").join(format!("{}/fd/{fd}", self.pid))).unwrap()
    }

    fn text(&self, at: u64) -> String {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        let mut bytes = vec![0; 256];
        let len = memory.read_at(&mut bytes, at).unwrap();
        let text = CStr::from_bytes_until_nul(&bytes[..len]).unwrap();
        text.to_str().unwrap().to_string()
    }
}
