//! The guard that outlives the test process just long enough to end what that has started.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Place, Program, find, tree};

/// Runs "$@" in the background, tells its process id, and waits for the end of standard input. Then
/// it ends what is left, and removes the folder unless it was told to keep it.
///
/// The shell is not asked for the state of its child before that, so the number stays the child's;
/// where a shell does so by itself, the parent's number says whose it is.
const SCRIPT: &str = r#"
fell() {
    kill -STOP "$1" 2>/dev/null
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do fell "$child"; done
    kill -KILL "$1" 2>/dev/null
}
folder=$1
shift
"$@" </dev/null >>"$folder/log" 2>&1 &
pid=$!
echo "$pid"
exec >/dev/null
word=gone
while read -r line; do word=$line; done
if grep -q "^PPid:[[:space:]]*$$\$" "/proc/$pid/status" 2>/dev/null; then fell "$pid"; fi
wait "$pid" 2>/dev/null
[ "$word" = keep ] || rm -rf "$folder"
"#;

/// The main process of a server, and its guard. Dropping it kills the server with its children.
#[derive(Debug)]
pub(super) struct Guarded {
    guard: Child,
    pid: Pid,
    /// Names the process for as long as we hold it, also when its number is used again.
    handle: OwnedFd,
}

impl Guarded {
    pub(super) fn start(place: &Place, program: &Program) -> io::Result<Guarded> {
        program.prepare(place);
        OpenOptions::new().create(true).append(true).open(place.file("log"))?;
        // A session of its own: what a terminal sends to the test process is not for it, and the end
        // of that process does not orphan its group, upon which the kernel hangs up on stopped ones.
        let mut guard = Command::new(find(&["setsid"]))
            .args(["/bin/sh", "-c", SCRIPT, "guard"])
            .arg(place.folder())
            .args(program.words())
            .current_dir(place.folder())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = guard.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let pid = line.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the guard has not told a process id"))?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Guarded { guard, pid, handle })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(super) fn is_alive(&self) -> bool {
        !self.wait(Duration::ZERO)
    }

    /// Waits until its main process has ended; says whether it has.
    pub(super) fn wait(&self, within: Duration) -> bool {
        let mut ends = [PollFd::new(&self.handle, PollFlags::IN)];
        let within = Timespec::try_from(within).ok();
        matches!(poll(&mut ends, within.as_ref()), Ok(1..))
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended.
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    pub(super) fn stop(&self) {
        if self.is_alive() {
            tree::stop(self.pid);
        }
    }

    pub(super) fn cont(&self) {
        if self.is_alive() {
            tree::cont(self.pid);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.is_alive() {
            tree::kill(self.pid);
        }
        if let Some(mut stdin) = self.guard.stdin.take() {
            // Should the guard be gone, there is nobody to be told.
            let _ = stdin.write_all(b"keep\n");
        }
        let _ = self.guard.wait();
    }
}
