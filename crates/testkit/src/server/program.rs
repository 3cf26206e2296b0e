//! What to run: a program with its arguments, environment and user.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{FakeTime, Place};

/// A program to run at a [`Place`].
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    user: Option<User>,
}

/// Somebody from the list of users.
#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl Program {
    /// A program of this path, without arguments.
    pub fn new(path: impl Into<PathBuf>) -> Program {
        Program { path: path.into(), args: Vec::new(), envs: Vec::new(), user: None }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Program {
        self.envs.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs it as this user, or as `nobody` if there is none of this name, where we are root.
    ///
    /// For servers that refuse to run as root. The folder of its place is given to that user.
    #[must_use]
    pub fn unprivileged(mut self, name: &str) -> Program {
        if rustix::process::getuid().is_root() {
            let user = user(name).or_else(|| user("nobody"));
            assert!(user.is_some(), "neither {name} nor nobody is in /etc/passwd");
            self.user = user;
        }
        self
    }

    /// Shows it the wall clock of `time`.
    #[must_use]
    pub fn fake_time(self, time: &FakeTime) -> Program {
        time.envs().into_iter().fold(self, |program, (name, value)| program.env(name, value))
    }

    /// What is to be executed, in the end: none of its words starts a process beside it.
    pub(super) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(User { uid, gid }) = self.user {
            words.push(find(&["setpriv"]).into());
            words.push(format!("--reuid={uid}").into());
            words.push(format!("--regid={gid}").into());
            words.push("--clear-groups".into());
        }
        if !self.envs.is_empty() {
            words.push("env".into());
            for (name, value) in &self.envs {
                let mut word = name.clone();
                word.push("=");
                word.push(value);
                words.push(word);
            }
        }
        words.push(self.path.clone().into());
        words.extend(self.args.iter().cloned());
        words
    }

    /// As a command, with the user and the environment in it.
    pub fn command(&self) -> Command {
        let mut words = self.words().into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }

    /// Gives the place to the user as whom it will run.
    pub(super) fn prepare(&self, place: &Place) {
        if let Some(user) = self.user {
            give(place.folder(), user);
        }
    }
}

fn give(path: &Path, user: User) {
    lchown(path, Some(user.uid), Some(user.gid))
        .unwrap_or_else(|e| panic!("give {} to {user:?}: {e}", path.display()));
    if path.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.filter_map(Result::ok).for_each(|entry| give(&entry.path(), user));
    }
}

fn user(name: &str) -> Option<User> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then_some(())?;
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(User { uid, gid })
    })
}

/// The first of these programs that is installed: names are looked for in `PATH` and in the
/// folders of system programs, paths are taken as they are.
///
/// # Panics
///
/// If none is: a missing server is a failure, never a skipped test.
pub fn find(names: &[&str]) -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .collect();
    let of = |name: &&str| {
        // Joining an absolute path gives that path.
        folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    names
        .iter()
        .find_map(of)
        .unwrap_or_else(|| panic!("none of {names:?} is installed: run scripts/test prepare"))
}

/// The folder for the servers that `scripts/test prepare` fetches: `target/servers`.
pub fn fetched() -> PathBuf {
    target().join("servers")
}

/// The folder `target` of this workspace, in which scripts/test puts what it fetches.
pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}
