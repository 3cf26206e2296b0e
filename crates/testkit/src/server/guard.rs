//! The guard that outlives the test process just long enough to end what that has started.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{Place, Program, find, tree};

/// Runs "$@" in the background, tells its process id, and waits for the end of standard input. Then
/// it ends what is left.
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
while read -r _; do :; done
if grep -q "^PPid:[[:space:]]*$$\$" "/proc/$pid/status" 2>/dev/null; then fell "$pid"; fi
wait "$pid" 2>/dev/null
"#;

/// Waits for the end of standard input, and removes the folder if it was not told before that this
/// was done. The server in it may still be dying.
const FOLDER_SCRIPT: &str = r#"
read -r word && exit
for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$1" 2>/dev/null
    [ -e "$1" ] || exit 0
    sleep 1
done
"#;

/// Removes a folder when this process ends without having done so.
#[derive(Debug)]
pub(super) struct FolderGuard(Child);

impl FolderGuard {
    pub(super) fn start(folder: &Path) -> io::Result<FolderGuard> {
        let mut command = shell(FOLDER_SCRIPT, folder);
        Ok(FolderGuard(command.stdout(Stdio::null()).spawn()?))
    }
}

impl Drop for FolderGuard {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            // Should the guard be gone, there is nobody to be told.
            let _ = stdin.write_all(b"done\n");
        }
        let _ = self.0.wait();
    }
}

/// A shell in a session of its own: what a terminal sends to the test process is not for it, and the
/// end of that process does not orphan its group, upon which the kernel hangs up on stopped ones.
fn shell(script: &str, folder: &Path) -> Command {
    let mut command = Command::new(find(&["setsid"]));
    command.args(["/bin/sh", "-c", script, "guard"]).arg(folder);
    command.stdin(Stdio::piped()).stderr(Stdio::null());
    command
}

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
        let mut guard = shell(SCRIPT, place.folder())
            .args(program.words())
            .current_dir(place.folder())
            .stdout(Stdio::piped())
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
        // This ends its standard input first.
        let _ = self.guard.wait();
    }
}
