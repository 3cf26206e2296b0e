//! Drives the example `supervised` with real processes.

#![allow(dead_code, reason = "each test file uses its part of it")]
#![allow(unsafe_code, reason = "a process is set up by hand between fork and exec")]

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Longer than anything takes on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The example, which cargo builds with all tests of the crate, but not for
/// `--test NAME`: an old one would prove nothing.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let profile = test.parent().and_then(Path::parent).expect("a profile folder");
    let program = profile.join("examples").join("supervised");
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let newest = newest(&crate_dir.join("src")).max(newest(&crate_dir.join("examples")));
    assert!(
        changed(&program).is_some_and(|built| Some(built) >= newest),
        "{} is older than its source: cargo build -p leasehold-supervise --example supervised",
        program.display()
    );
    program
}

fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).ok()?.modified().ok()
}

/// When the newest file under a folder was changed.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(folder).expect("a source folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.map(|path| if path.is_dir() { newest(&path) } else { changed(&path) }).max().flatten()
}

/// What the monotonic clock reads.
pub(crate) fn now_ns() -> u64 {
    leasehold_supervise::ClockKind::Monotonic.now_ns()
}

/// A folder in which a test runs its processes. None of them may outlive it: what is left when it
/// is dropped fails the test, and is killed.
pub(crate) struct Folder {
    dir: tempfile::TempDir,
    /// Without symbolic links, as `/proc` names it.
    real: PathBuf,
}

impl Folder {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let real = dir.path().canonicalize().expect("it is there");
        Self { dir, real }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The processes that work in it.
    pub(crate) fn inhabitants(&self) -> Vec<i32> {
        let of = |pid: &i32| {
            let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
            cwd.is_ok_and(|cwd| cwd == self.real)
        };
        let entries = std::fs::read_dir("/proc").expect("/proc");
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(of).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What was killed just now may need a moment to be gone.
        let began = Instant::now();
        let mut left = self.inhabitants();
        while !left.is_empty() && began.elapsed() < LEAVING {
            std::thread::sleep(Duration::from_millis(2));
            left = self.inhabitants();
        }
        let seen = left.clone();
        while !left.is_empty() && began.elapsed() < LONG {
            left.iter().for_each(|pid| kill(*pid, libc::SIGKILL));
            left = self.inhabitants();
        }
        assert!(seen.is_empty() || std::thread::panicking(), "{seen:?} were left running");
    }
}

/// How long what was killed may take to be gone.
const LEAVING: Duration = Duration::from_secs(10);

/// A run in a folder of its own, off any terminal. Dropping it kills what is left of it.
pub(crate) struct Run {
    pub(crate) dir: Folder,
    pub(crate) child: Child,
}

/// A run that is being set up.
pub(crate) struct Setup {
    pub(crate) dir: Folder,
    pub(crate) command: Command,
}

impl Setup {
    pub(crate) fn new(options: &str) -> Self {
        let mut setup = Self::bare(options);
        // A session without a terminal, and no group in common with the tests.
        // SAFETY: one system call.
        unsafe {
            setup.command.pre_exec(|| {
                libc::setsid();
                Ok(())
            });
        }
        setup
    }

    /// In a group of its own of the tests' session: unlike a session's leader it can be stopped.
    pub(crate) fn in_this_session(options: &str) -> Self {
        let mut setup = Self::bare(options);
        setup.command.process_group(0);
        setup
    }

    fn bare(options: &str) -> Self {
        let dir = Folder::new();
        let mut command = Command::new(program());
        command.arg("--log").arg(dir.path().join("log"));
        command.args(options.split_whitespace()).arg("--").current_dir(dir.path());
        command.env("SUPERVISED", program());
        Self { dir, command }
    }

    /// Runs `script` by the shell, in the run's folder; `$SUPERVISED` is the example.
    pub(crate) fn shell(mut self, script: &str) -> Run {
        self.command.args(["/bin/sh", "-c", script]);
        self.go()
    }

    pub(crate) fn go(mut self) -> Run {
        let child = self.command.spawn().expect("the example runs");
        Run { dir: self.dir, child }
    }
}

/// Runs `script` under the example with `options`.
pub(crate) fn shell(options: &str, script: &str) -> Run {
    Setup::new(options).shell(script)
}

impl Run {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub(crate) fn kill(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The file `name`, once it ends with a line end.
    pub(crate) fn text(&self, name: &str) -> String {
        until(&format!("{name} to be written"), || {
            std::fs::read_to_string(self.path(name)).ok().filter(|text| text.ends_with('\n'))
        })
    }

    /// The number in the file `name`.
    pub(crate) fn number(&self, name: &str) -> i32 {
        self.text(name).trim().parse().expect("a number")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The first line of the log that holds `what`.
    pub(crate) fn logged(&self, what: &str) -> String {
        until(&format!("`{what}` in the log"), || {
            self.log().lines().find(|line| line.contains(what)).map(str::to_owned)
        })
    }

    pub(crate) fn keeper(&self) -> i32 {
        self.logged("keeper ")[7..].parse().expect("a number")
    }

    /// The last deadline that was told.
    pub(crate) fn deadline(&self) -> u64 {
        let log = self.log();
        let line = log.lines().rfind(|line| line.starts_with("deadline ")).expect("a deadline");
        line[9..].parse().expect("a number")
    }

    /// What the beat in the file `name` wrote last; waits for the first.
    pub(crate) fn beat(&self, name: &str) -> u64 {
        until(&format!("a beat in {name}"), || {
            let text = std::fs::read_to_string(self.path(name)).ok()?;
            text.trim().parse().ok().filter(|_| text.len() == 20)
        })
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the run to end", || self.child.try_wait().expect("waitable"))
    }

    pub(crate) fn code(&mut self) -> Option<i32> {
        self.wait().code()
    }

    pub(crate) fn signal(&mut self) -> Option<i32> {
        self.wait().signal()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Its keeper kills the rest.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is touched.
    unsafe { libc::kill(pid, signal) };
}

/// The state letter of a process, unless it is gone.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether a process runs, or could.
pub(crate) fn alive(pid: i32) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

/// Waits until a process is dead.
pub(crate) fn dead(pid: i32) {
    until(&format!("{pid} to be dead"), || (!alive(pid)).then_some(()));
}

/// Looks again and again until `look` sees something.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < LONG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reads nothing and shows nothing.
pub(crate) fn quiet(command: &mut Command) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}
