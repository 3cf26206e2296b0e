//! A store of its own for each test, and processes that do not outlive it.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

/// Far longer than anything here takes: what is not there by then never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A folder with a store in it.
pub(crate) struct World {
    folder: tempfile::TempDir,
    vars: Vec<(&'static str, String)>,
}

/// What a program wrote and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The code, 128+N for a signal, as a shell tells it.
    pub(crate) fn code(&self) -> i32 {
        code(self.status)
    }

    /// The one JSON object on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Asserts the code, and returns itself.
    pub(crate) fn ended(self, code: i32) -> Ran {
        assert_eq!(self.code(), code, "{self:?}");
        self
    }
}

pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|n| 128 + n)).expect("it ended")
}

impl World {
    pub(crate) fn new() -> World {
        World::with(&[])
    }

    /// One whose programs find these variables besides the usual ones, or in place of them.
    pub(crate) fn with(vars: &[(&'static str, String)]) -> World {
        World { folder: tempfile::tempdir().unwrap(), vars: vars.to_vec() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has a whole first line.
    pub(crate) fn line(&self, name: &str) -> String {
        eventually(&format!("a line in {name}"), || {
            let text = self.read(name);
            text.ends_with('\n').then(|| text.trim_end().to_string())
        })
    }

    /// Any program in the folder, in an environment without what this one runs in.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name != "TMPDIR" {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.folder.path())
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.folder.path())
            // Root's own place for a store is the machine's, not a test's.
            .env("XDG_STATE_HOME", self.path("state"))
            .env("LEASEHOLD_STORE", self.store())
            .env("L", env!("CARGO_BIN_EXE_leasehold"))
            .envs(self.vars.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    /// The program under test; `args` are split at blanks, and `more` follow as they are.
    pub(crate) fn leasehold(&self, args: &str, more: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_leasehold"));
        command.args(args.split_whitespace()).args(more);
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, args: &str, more: &[&str]) -> Ran {
        finish(self.leasehold(args, more))
    }

    /// Runs a shell script in which `$L` is the program.
    pub(crate) fn sh(&self, script: &str) -> Ran {
        let mut command = self.program("sh");
        command.args(["-c", script]);
        finish(command)
    }

    /// Starts the program in a process group of its own.
    pub(crate) fn start(&self, args: &str, more: &[&str]) -> Started {
        start(self.leasehold(args, more))
    }

    /// What `show --json` says.
    pub(crate) fn shown(&self, name: &str) -> Value {
        self.run("show --json", &[name]).ended(0).json()
    }

    /// Waits until so many wait for a name.
    pub(crate) fn waiters(&self, name: &str, count: usize) {
        eventually("a waiter", || {
            let shown = self.shown(name);
            (shown["waiters"].as_array().unwrap().len() == count).then_some(())
        });
    }

    /// Waits until someone holds a name.
    pub(crate) fn held(&self, name: &str) {
        eventually("a holder", || self.shown(name)["held"].as_bool().unwrap().then_some(()));
    }
}

/// Runs a command to its end, whatever it leaves running.
pub(crate) fn finish(command: Command) -> Ran {
    start(command).finish()
}

/// Starts a command in a process group of its own, with pipes at stdout and stderr.
pub(crate) fn start(mut command: Command) -> Started {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    start_as_it_is(command)
}

/// Starts a command in a process group of its own, with its outputs where they are.
pub(crate) fn start_as_it_is(mut command: Command) -> Started {
    Started { child: command.process_group(0).spawn().unwrap() }
}

/// A process that is killed if the test forgets it.
pub(crate) struct Started {
    pub(crate) child: Child,
}

impl Started {
    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Closes stdin.
    pub(crate) fn hang_up(&mut self) {
        self.child.stdin = None;
    }

    pub(crate) fn write(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits for its end, and reads what it wrote.
    pub(crate) fn finish(mut self) -> Ran {
        let read = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut pipe) = pipe {
                    let _ = pipe.read_to_end(&mut bytes);
                }
                String::from_utf8_lossy(&bytes).into_owned()
            })
        };
        let out = read(self.child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
        let err = read(self.child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
        let status = eventually("the end of a process", || self.child.try_wait().unwrap());
        Ran { status, out: out.join().unwrap(), err: err.join().unwrap() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

pub(crate) fn kill_group(group: i32, signal: Signal) {
    kill_process_group(Pid::from_raw(group).unwrap(), signal).unwrap();
}

/// Whether a process is there and not a zombie.
pub(crate) fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

/// The children of a process.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let path = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The keeper of a run.
pub(crate) fn keeper(front: i32) -> i32 {
    eventually("the keeper", || children(front).first().copied())
}

pub(crate) fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
