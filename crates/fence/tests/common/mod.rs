//! This test program again, as a child process that plays a holder.
#![allow(dead_code)] // Each test file uses its own part.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use leasehold_fence::{Mark, Token};

/// What the child is to do, in its environment; its tests are named `child`.
const ROLE: &str = "LEASEHOLD_FENCE_TEST_ROLE";
const PLACE: &str = "LEASEHOLD_FENCE_TEST_PLACE";

pub(crate) fn at(n: u64) -> Mark {
    Mark::from(Token::new(n).unwrap())
}

/// The role and place of this process, if it is such a child.
pub(crate) fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PLACE)?.into()))
}

pub(crate) fn command(role: &str, place: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, role).env(PLACE, place);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A child that said it is where its role wants it.
pub(crate) struct Holder {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
}

impl Holder {
    pub(crate) fn start(role: &str, place: &Path) -> Holder {
        let mut child = command(role, place).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The test harness of the child says a few things before.
        assert!(lines.any(|line| line.unwrap().ends_with("READY")), "{role} got ready");
        std::thread::spawn(move || lines.for_each(drop));
        Holder { child, stdin }
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Lets it go on, and waits for its end.
    pub(crate) fn finish(mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.child.wait().unwrap()
    }
}

/// In the child: says that it is ready, and waits until the parent lets it go on.
pub(crate) fn ready() {
    println!("READY");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
