//! A process of its own that does what it is told on its standard input, one line a request.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use leasehold_core::{
    Admission, Claim, Cursor, Hint, Left, Life, Mode, Place, Renewed, Store, Token, Waiting,
};
use leasehold_sqlite::{SqliteConfig, SqliteStore};

const ROLE: &str = "LEASEHOLD_SQLITE_TEST_AGENT";

/// How long word is waited for: far longer than it takes, far shorter than the terms.
const PATIENCE: Duration = Duration::from_secs(40);

/// An agent as its master sees it.
pub(crate) struct Agent {
    pub(crate) child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Agent {
    /// Starts one on this database; it has not opened it yet.
    pub(crate) fn start(path: &Path) -> Agent {
        Agent::start_by(path, Command::new(std::env::current_exe().unwrap()))
    }

    /// Starts one by another command, to which the test's own arguments are added.
    pub(crate) fn start_by(path: &Path, mut command: Command) -> Agent {
        command.args(["--exact", "agent", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Agent { child, stdin, stdout }
    }

    /// Starts one that has opened the database.
    pub(crate) fn opened(path: &Path) -> Agent {
        let mut agent = Agent::start(path);
        assert_eq!(agent.ask("open"), "opened");
        agent
    }

    pub(crate) fn tell(&mut self, request: &str) {
        writeln!(self.stdin, "{request}").unwrap();
        self.stdin.flush().unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the agent is gone");
            // What the test framework prints has no mark.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim().to_owned();
            }
        }
    }

    /// Whether it says nothing for this long.
    pub(crate) fn is_silent(&self, span: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        assert!(self.stdout.buffer().is_empty());
        let timeout = Timespec { tv_sec: 0, tv_nsec: span.subsec_nanos().into() };
        poll(&mut [PollFd::new(self.stdout.get_ref(), PollFlags::IN)], Some(&timeout)).unwrap() == 0
    }

    pub(crate) fn ask(&mut self, request: &str) -> String {
        self.tell(request);
        self.answer()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: does nothing unless this process was started as an agent.
pub(crate) fn serve() {
    let Some(path) = std::env::var_os(ROLE) else { return };
    let mut served = Served { path: path.into(), store: None, claims: HashMap::new() };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = served.serve(&words);
        println!("@{answer}");
    }
    std::process::exit(0);
}

struct Served {
    path: PathBuf,
    store: Option<SqliteStore>,
    claims: HashMap<String, Kept>,
}

struct Kept {
    claim: Claim,
    waiting: Option<Waiting>,
    cursor: Cursor,
}

impl Served {
    fn serve(&mut self, words: &[&str]) -> String {
        match words {
            ["open"] => self.open(None),
            ["open", mode] => self.open(Some(u32::from_str_radix(mode, 8).unwrap())),
            ["enter", id, name, rest @ ..] => self.enter(id, name, rest),
            // Waits for word alone.
            ["hint", id] => self.hint(id),
            // As the driver does.
            ["await", id] => self.wait(id),
            ["leave", id] => self.leave(id),
            ["renew", id] => self.renew(id),
            ["count", name, file, times] => self.count(name, file, times.parse().unwrap()),
            ["log", id, file, what] => self.log(id, file, what),
            ["heir"] => self.heir(),
            ["limit", bytes] => limit(bytes),
            ["fork", name] => self.fork(name),
            ["ping"] => "pong".into(),
            other => format!("what is {other:?}"),
        }
    }

    fn open(&mut self, mode: Option<u32>) -> String {
        let mut config = SqliteConfig::new(&self.path);
        config.mode = mode;
        match SqliteStore::open(config) {
            Ok(store) => {
                self.store = Some(store);
                "opened".into()
            }
            Err(error) => format!("error {:?} {error}", error.kind()),
        }
    }

    fn store(&self) -> &SqliteStore {
        self.store.as_ref().unwrap()
    }

    fn enter(&mut self, id: &str, name: &str, rest: &[&str]) -> String {
        let mut claim = super::claim(name);
        for word in rest {
            match *word {
                "shared" => claim.mode = Mode::Shared,
                "try" => claim.place = Place::No,
                "term-life" => claim.life = Life::Term,
                ms => claim.term = Duration::from_millis(ms.parse().unwrap()),
            }
        }
        let answer = block_on(self.store().enter(&claim));
        let mut kept = Kept { claim, waiting: None, cursor: Cursor::default() };
        let told = match answer {
            Ok(Admission::Granted(grant)) => format!("granted {} {}", grant.token, grant.previous),
            Ok(Admission::Waiting(waiting)) => {
                let ahead = waiting.ahead.unwrap();
                kept.waiting = Some(waiting);
                format!("waiting {ahead}")
            }
            Ok(Admission::Busy(_)) => "busy".into(),
            Ok(Admission::Gone(how)) => format!("gone {how}"),
            Err(error) => format!("error {:?} {error}", error.kind()),
        };
        self.claims.insert(id.into(), kept);
        told
    }

    fn hint(&mut self, id: &str) -> String {
        let kept = &self.claims[id];
        let name = kept.claim.resource.clone();
        let started = Instant::now();
        let hint = block_on(self.store().changed(&name, None, kept.cursor, PATIENCE)).unwrap();
        match hint {
            Hint::Moved(_) if started.elapsed() >= PATIENCE => "nothing".into(),
            Hint::Moved(cursor) => {
                self.claims.get_mut(id).unwrap().cursor = cursor;
                "moved".into()
            }
            Hint::Granted(pushed) => {
                assert_eq!(pushed.grant.claim, kept.claim.id);
                assert_eq!(Some(pushed.ticket), kept.waiting.as_ref().map(|w| w.ticket));
                format!("granted {} {}", pushed.grant.token, pushed.grant.previous)
            }
        }
    }

    fn wait(&mut self, id: &str) -> String {
        let store = self.store.as_ref().unwrap();
        let kept = self.claims.get_mut(id).unwrap();
        match acquire(store, kept) {
            Ok((token, words)) => format!("granted {token} after {words} words"),
            Err(told) => told,
        }
    }

    fn leave(&mut self, id: &str) -> String {
        match block_on(self.store().leave(&self.claims[id].claim.to_ref())) {
            Ok(Left::Released) => "released".into(),
            Ok(Left::Gone(how)) => format!("gone {how}"),
            Err(error) => format!("error {:?} {error}", error.kind()),
        }
    }

    fn renew(&mut self, id: &str) -> String {
        let claim = self.claims[id].claim.to_ref();
        match super::renew(self.store(), &claim) {
            Renewed::Alive { .. } => "alive".into(),
            Renewed::Granted(grant) => format!("granted {} {}", grant.token, grant.previous),
            Renewed::Waiting(waiting) => format!("waiting {}", waiting.ahead.unwrap()),
            Renewed::Gone(how) => format!("gone {how}"),
            Renewed::Unknown(error) => format!("error {:?} {error}", error.kind()),
        }
    }

    /// Reads a number, adds one and writes it back, under the lock.
    fn count(&mut self, name: &str, file: &str, times: u32) -> String {
        let store = self.store.as_ref().unwrap();
        for _ in 0..times {
            let claim = super::claim(name);
            let mut kept = Kept { claim, waiting: None, cursor: Cursor::default() };
            match block_on(store.enter(&kept.claim)).unwrap() {
                Admission::Granted(_) => {}
                Admission::Waiting(waiting) => {
                    kept.waiting = Some(waiting);
                    acquire(store, &mut kept).unwrap();
                }
                other => panic!("{other:?}"),
            }
            let n: u32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
            std::fs::write(file, (n + 1).to_string()).unwrap();
            let left = block_on(store.leave(&kept.claim.to_ref())).unwrap();
            assert_eq!(left, Left::Released);
        }
        "counted".into()
    }

    /// Waits for the lock, notes it in a file, and leaves.
    fn log(&mut self, id: &str, file: &str, what: &str) -> String {
        let granted = self.wait(id);
        let mut log = std::fs::OpenOptions::new().append(true).open(file).unwrap();
        writeln!(log, "{what}").unwrap();
        format!("{granted} {}", self.leave(id))
    }

    /// Starts a process that inherits the liveness lock.
    fn heir(&self) -> String {
        let fd = self.store().liveness_fd().unwrap().try_clone_to_owned().unwrap();
        let number = fd.as_raw_fd();
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec only one system call is made.
        #[allow(unsafe_code)]
        unsafe {
            command.pre_exec(move || {
                let fd = std::os::fd::BorrowedFd::borrow_raw(number);
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
                Ok(())
            });
        }
        command.spawn().unwrap().id().to_string()
    }

    /// Uses the store in a forked child.
    fn fork(&self, name: &str) -> String {
        let claim = super::claim(name);
        // SAFETY: this process has one busy thread, and the child leaves by _exit.
        #[allow(unsafe_code)]
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = block_on(self.store().enter(&claim)).is_err();
            // SAFETY: always allowed.
            #[allow(unsafe_code)]
            unsafe {
                libc::_exit(if refused { 17 } else { 0 })
            }
        }
        let pid = rustix::process::Pid::from_raw(child).unwrap();
        let (_, status) =
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
                .unwrap()
                .unwrap();
        format!("child {:?}", status.exit_status())
    }
}

/// Limits the size of files this process writes.
fn limit(bytes: &str) -> String {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let current = bytes.parse().ok();
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    "limited".into()
}

/// Waits as the driver does; the token and how often there was word.
fn acquire(store: &SqliteStore, kept: &mut Kept) -> Result<(Token, u32), String> {
    let mut words = 0;
    loop {
        let Some(waiting) = &kept.waiting else { return Err("does not wait".into()) };
        let started = Instant::now();
        let name = &kept.claim.resource;
        let hint = block_on(store.changed(name, None, kept.cursor, waiting.recheck_in)).unwrap();
        if started.elapsed() < waiting.recheck_in {
            words += 1;
        }
        match hint {
            Hint::Granted(pushed) if pushed.ticket == waiting.ticket => {
                return Ok((pushed.grant.token, words));
            }
            Hint::Granted(_) => {}
            Hint::Moved(cursor) => kept.cursor = cursor,
        }
        match super::renew(store, &kept.claim.to_ref()) {
            Renewed::Granted(grant) => return Ok((grant.token, words)),
            Renewed::Waiting(waiting) => kept.waiting = Some(waiting),
            other => return Err(format!("{other:?}")),
        }
    }
}
