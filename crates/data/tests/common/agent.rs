//! A process of its own that does what it is told on its standard input, one line a request.

use std::process::Command;
use std::time::Duration;

use leasehold_testkit::process::{Process, Stream};

use super::{Db, PATIENCE, block_on};

const ROLE: &str = "LEASEHOLD_DATA_TEST_AGENT";

/// A process as its master sees it.
pub(crate) struct Agent {
    process: Process,
    heard: usize,
}

impl Agent {
    /// Starts this test program anew, for its test `agent` alone, with what it should know.
    pub(crate) fn start(db: &Db, known: &str) -> Agent {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "agent", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, format!("{}\n{known}", db.told()));
        let process = Process::start(&mut command).unwrap();
        process.wait_for("@ready", PATIENCE);
        Agent { process, heard: 1 }
    }

    pub(crate) fn tell(&mut self, request: &str) -> bool {
        self.process.write(format!("{request}\n").as_bytes()).is_ok()
    }

    fn answers(&self) -> Vec<String> {
        let text = self.process.text(Stream::Out);
        let marked = text.lines().filter_map(|line| Some(line.split_once('@')?.1.to_owned()));
        marked.collect()
    }

    /// The next answer, or `None` if it died before it gave one.
    pub(crate) fn answer(&mut self) -> Option<String> {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let ended = self.has_ended();
            if let Some(answer) = self.answers().get(self.heard) {
                self.heard += 1;
                return Some(answer.clone());
            }
            if ended {
                return None;
            }
            assert!(std::time::Instant::now() < end, "no answer: {:?}", self.process.lines());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn ask(&mut self, request: &str) -> Option<String> {
        if !self.tell(request) {
            return None;
        }
        self.answer()
    }

    /// Whether it is dead, and all it has said is read.
    fn has_ended(&mut self) -> bool {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.process.pid()).unwrap());
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let what = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = waitid(WaitId::Pid(pid.unwrap()), what);
        if matches!(ended, Ok(None)) {
            return false;
        }
        self.process.wait(PATIENCE);
        true
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn kill(&mut self) {
        // It may have killed itself.
        let _ = self.process.kill9();
        self.process.wait(PATIENCE);
    }
}

/// The other side: does nothing unless this process was started as an agent.
pub(crate) fn serve(serve: impl AsyncFn(Db, String, &mut dyn FnMut() -> Option<String>)) {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().unwrap();
    let (db, known) = role.split_once('\n').unwrap();
    say("ready");
    let mut lines = std::io::stdin().lines();
    let mut next = move || Some(lines.next()?.unwrap());
    block_on(serve(Db::heard(db), known.to_owned(), &mut next));
    std::process::exit(0);
}

pub(crate) fn say(answer: &str) {
    println!("@{answer}");
}

/// As `kill -9` does.
pub(crate) fn die() -> ! {
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap();
    loop {
        std::thread::park();
    }
}
