//! The client over the embedded store, with real processes that are killed, stopped and forked.

#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{eventually, within};
use futures_lite::future::block_on;
use leasehold::{
    AcquireError, Client, Closed, Ended, ErrorKind, Holder, Lease, Loss, Previous, Release, State,
    blocking,
};
use rustix::process::{Pid, Signal, kill_process};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);
/// Marks what an agent says among what the test harness says.
const MARK: &str = "agent: ";

// --- the other side --------------------------------------------------------------------------

/// Not a test of its own: the other side of the tests below.
#[test]
fn agent() {
    let Ok(url) = std::env::var("LEASEHOLD_TEST_URL") else { return };
    let mut agent = Side { client: Some(blocking::connect(&url).unwrap()), leases: HashMap::new() };
    say("ready");
    while let Some(line) = heard() {
        let words: Vec<&str> = line.split_whitespace().collect();
        agent.obey(&words);
    }
}

fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout();
    writeln!(out, "{MARK}{what}").unwrap();
    out.flush().unwrap();
}

/// The next line; `lines` would keep the lock.
fn heard() -> Option<String> {
    let mut line = String::new();
    (std::io::stdin().read_line(&mut line).unwrap() > 0).then_some(line)
}

struct Side {
    client: Option<Client>,
    leases: HashMap<String, Arc<Lease>>,
}

impl Side {
    fn obey(&mut self, words: &[&str]) {
        match *words {
            ["acquire", name, ttl_ms] => {
                let request = self.client().lock(name).ttl(millis(ttl_ms));
                let lease = blocking::acquire(request).unwrap();
                say(format_args!("granted {} {}", lease.token(), lease.previous()));
                self.leases.insert(name.into(), Arc::new(lease));
            }
            ["reenter", name, holder] => {
                let holder = Holder::new(holder.parse().unwrap(), "again");
                let lease = blocking::acquire(self.client().lock(name).holder(&holder)).unwrap();
                say(format_args!("granted {} {}", lease.token(), lease.previous()));
                self.leases.insert(name.into(), Arc::new(lease));
            }
            // Works whenever it is told to, until the lease is lost.
            ["work", name] => {
                let lease = Arc::clone(&self.leases[name]);
                let (tell, told) = std::sync::mpsc::channel::<()>();
                std::thread::spawn(move || {
                    while let Some(line) = heard() {
                        assert_eq!(line.trim(), "more");
                        tell.send(()).unwrap();
                        WORK.wake();
                    }
                });
                let work = std::future::poll_fn(|cx| {
                    WORK.register(cx.waker());
                    for () in told.try_iter() {
                        say("worked");
                    }
                    std::task::Poll::<()>::Pending
                });
                let loss = block_on(lease.run(work)).unwrap_err();
                say(format_args!("lost {}", loss.word()));
                say(format_args!("state {:?}", lease.state()));
                std::thread::sleep(LONG);
            }
            ["state", name] => say(format_args!("{:?}", self.leases[name].state())),
            ["release", name] => {
                let lease = Arc::into_inner(self.leases.remove(name).unwrap()).unwrap();
                say(format_args!("{:?}", blocking::release(lease)));
            }
            ["stay", name, ms] => {
                let lease = Arc::into_inner(self.leases.remove(name).unwrap()).unwrap();
                say(format_args!("{:?}", block_on(lease.leave_by_term(millis(ms))).unwrap()));
            }
            ["count", name, file, times] => {
                for _ in 0..times.parse::<u32>().unwrap() {
                    let lease = blocking::acquire(self.client().lock(name)).unwrap();
                    increment(file);
                    drop(lease);
                }
                say("counted");
            }
            ["forget"] => {
                self.client = None;
                say("forgotten");
            }
            ["close"] => {
                let client = self.client.take().unwrap();
                say(format_args!("{:?}", blocking::close(client, LONG)));
            }
            ["fork", name] => self.fork(name),
            _ => panic!("{words:?}"),
        }
    }

    fn client(&self) -> &Client {
        self.client.as_ref().unwrap()
    }

    /// What a forked child can do with what its parent holds: nothing.
    #[allow(unsafe_code, reason = "there is no safe fork")]
    fn fork(&mut self, name: &str) {
        // SAFETY: the driver and every other thread of this process sleep, and the child ends
        // without running anything of the harness.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let again = blocking::acquire(self.client().lock("other").no_wait());
            let closed =
                matches!(&again, Err(AcquireError::Failed(e)) if e.kind() == ErrorKind::Closed);
            let lease = Arc::into_inner(self.leases.remove(name).unwrap()).unwrap();
            let released = blocking::release(lease);
            let unknown = matches!(released, Release::Unknown(_));
            // SAFETY: always allowed.
            unsafe { libc::_exit(i32::from(!closed) + 2 * i32::from(!unknown)) };
        }
        let mut status = 0;
        // SAFETY: the status outlives the call.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        say(format_args!("child {}", libc::WEXITSTATUS(status)));
    }
}

/// Wakes the work of an agent.
static WORK: Wakeful = Wakeful(std::sync::Mutex::new(None));

struct Wakeful(std::sync::Mutex<Option<std::task::Waker>>);

impl Wakeful {
    fn register(&self, waker: &std::task::Waker) {
        *self.0.lock().unwrap() = Some(waker.clone());
    }
    fn wake(&self) {
        if let Some(waker) = self.0.lock().unwrap().as_ref() {
            waker.wake_by_ref();
        }
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn increment(file: &str) {
    let value: u64 = std::fs::read_to_string(file).unwrap().parse().unwrap();
    std::thread::yield_now();
    std::fs::write(file, (value + 1).to_string()).unwrap();
}

// --- this side -------------------------------------------------------------------------------

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.0.path().join("locks.db").display())
    }

    fn client(&self) -> Client {
        blocking::connect(&self.url()).unwrap()
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn agent(&self) -> Agent {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "agent", "--nocapture", "--test-threads", "1"])
            .env("LEASEHOLD_TEST_URL", self.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut agent = Agent { child, stdin, stdout };
        assert_eq!(agent.hear(), "ready");
        agent
    }
}

struct Agent {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Agent {
    fn tell(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.stdout.read_line(&mut line).unwrap(), 0, "the agent has ended");
            // The harness may have begun the line.
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        self.hear()
    }

    fn granted(&mut self, what: &str) -> u64 {
        let answer = self.ask(what);
        let mut words = answer.split_whitespace();
        assert_eq!(words.next(), Some("granted"), "{answer}");
        words.next().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, and returns when all its threads stand.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        let status = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED);
        assert!(status.unwrap().unwrap().1.stopped());
    }

    fn kill(mut self) {
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

fn waiters(client: &Client, name: &str) -> usize {
    block_on(client.inspect(name)).unwrap().waiters().count()
}

/// Waits for a lock on a thread of its own; that it stands in the queue when this returns.
fn wait_for(client: &Client, name: &'static str) -> std::thread::JoinHandle<Lease> {
    let before = waiters(client, name);
    let request = client.lock(name);
    let wait = std::thread::spawn(move || blocking::acquire(request).unwrap());
    eventually("it waits", || waiters(client, name) > before);
    wait
}

fn join(wait: std::thread::JoinHandle<Lease>) -> Lease {
    within(LONG, "a lease", move || wait.join().unwrap())
}

#[test]
fn processes_and_their_threads_count_exactly() {
    let place = Place::new();
    let counter = place.file("counter", "0");
    let mut agents: Vec<Agent> = (0..5).map(|_| place.agent()).collect();
    agents.iter_mut().for_each(|a| a.tell(&format!("count ctr {counter} 40")));
    let client = place.client();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (client, counter) = (client.clone(), counter.clone());
            std::thread::spawn(move || {
                for _ in 0..25 {
                    let lease = blocking::acquire(client.lock("ctr")).unwrap();
                    increment(&counter);
                    assert!(matches!(blocking::release(lease), Release::Released));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    for agent in &mut agents {
        assert_eq!(agent.hear(), "counted");
    }
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "300");
    eventually("nothing is left", || block_on(client.inspect("ctr")).unwrap().entries.is_empty());
}

#[test]
fn a_killed_process_frees_its_locks_at_once_and_the_next_is_told_how() {
    let place = Place::new();
    let client = place.client();
    let mut agent = place.agent();
    let old = agent.granted("acquire r 600000");
    let wait = wait_for(&client, "r");
    let began = Instant::now();
    agent.kill();
    let lease = join(wait);
    assert!(began.elapsed() < LONG, "not after its term");
    assert!(lease.token().get() > old);
    assert_eq!(lease.previous(), Previous::Ended(Ended::Died));
}

#[test]
fn a_stopped_process_is_told_on_waking_before_it_does_anything() {
    let place = Place::new();
    let client = place.client();
    let mut agent = place.agent();
    agent.granted("acquire r 1000");
    agent.tell("work r");
    agent.tell("more");
    assert_eq!(agent.hear(), "worked");
    let wait = wait_for(&client, "r");
    agent.stop();
    let lease = join(wait); // its term is over
    agent.tell("more"); // waits for it when it wakes
    agent.signal(Signal::CONT);
    let said = agent.hear();
    assert!(said.starts_with("lost "), "it went on working beside the next holder: {said}");
    assert!(agent.hear().starts_with("state Lost("));
    assert_eq!(lease.state(), State::Held, "its late leave has touched nothing");
    std::thread::sleep(SECOND);
    assert_eq!(lease.state(), State::Held);
}

#[test]
fn a_stopped_waiter_costs_the_queue_seconds_and_then_waits_anew() {
    let place = Place::new();
    let client = place.client();
    let held = blocking::acquire(client.lock("r")).unwrap();
    let mut agent = place.agent();
    agent.tell("acquire r 600000");
    eventually("the agent waits", || waiters(&client, "r") == 1);
    let other = place.client();
    let wait = wait_for(&other, "r");
    agent.stop();
    drop(held);
    let lease = join(wait);
    agent.signal(Signal::CONT);
    eventually("it waits again", || waiters(&client, "r") == 1);
    drop(lease);
    assert!(agent.hear().starts_with("granted "));
}

#[test]
fn a_forked_child_holds_nothing_and_takes_nothing_from_its_parent() {
    let place = Place::new();
    let client = place.client();
    let mut agent = place.agent();
    agent.granted("acquire r 600000");
    assert_eq!(agent.ask("fork r"), "child 0");
    assert_eq!(agent.ask("state r"), "Held");
    assert!(block_on(client.lock("r").try_acquire()).unwrap().is_none());
    assert_eq!(agent.ask("release r"), "Released");
    assert!(block_on(client.lock("r").try_acquire()).unwrap().is_some());
}

#[test]
fn a_holder_s_id_re_enters_from_another_process_and_the_last_release_frees() {
    let place = Place::new();
    let client = place.client();
    let holder = client.new_holder(Some("both")).unwrap();
    let outer = blocking::acquire(client.lock("r").holder(&holder)).unwrap();
    let other = place.client();
    let wait = wait_for(&other, "r");
    let mut agent = place.agent();
    let inner = agent.granted(&format!("reenter r {}", holder.id));
    assert_eq!(inner, outer.token().get(), "past the one that waits, under the same token");
    assert!(matches!(blocking::release(outer), Release::Released));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!wait.is_finished(), "the inner hold is left");
    assert_eq!(agent.ask("release r"), "Released");
    assert!(join(wait).token().get() > inner);
}

#[test]
fn closing_a_client_frees_what_it_holds_and_leaves_no_waiter() {
    let place = Place::new();
    let client = place.client();
    let mut agent = place.agent();
    agent.granted("acquire a 600000");
    agent.granted("acquire b 600000");
    let wait = wait_for(&client, "a");
    assert_eq!(agent.ask("close"), "Clean");
    let lease = join(wait);
    assert_eq!(lease.previous(), Previous::Ended(Ended::Released));
    assert_eq!(agent.ask("state a"), "Lost(Closed)");
    assert!(block_on(client.inspect("b")).unwrap().entries.is_empty());

    // One that waits in the store's queue, and one that waits for its turn.
    let second = place.client();
    let waits: Vec<_> = (0..2)
        .map(|_| {
            let request = second.lock("a");
            std::thread::spawn(move || blocking::acquire(request).map(drop))
        })
        .collect();
    eventually("one waits", || waiters(&client, "a") == 1);
    let closed = within(LONG, "close", move || blocking::close(second, LONG));
    assert_eq!(closed, Closed::Clean);
    assert_eq!(waiters(&client, "a"), 0);
    for wait in waits {
        let ended = within(LONG, "the wait ends", move || wait.join().unwrap());
        let Err(AcquireError::Failed(error)) = ended else { panic!("{ended:?}") };
        assert_eq!(error.kind(), ErrorKind::Closed);
    }
}

#[test]
fn a_lease_outlives_its_client_and_frees_when_it_is_dropped() {
    let place = Place::new();
    let watcher = place.client();
    let lease = {
        let client = place.client();
        blocking::acquire(client.lock("r").ttl(SECOND)).unwrap()
    };
    std::thread::sleep(SECOND * 2);
    assert_eq!(lease.state(), State::Held, "the driver goes on");
    let mut agent = place.agent();
    agent.tell("acquire r 1000");
    eventually("the agent waits", || waiters(&watcher, "r") == 1);
    drop(lease);
    assert!(agent.hear().starts_with("granted "));
    assert_eq!(agent.ask("forget"), "forgotten");
    std::thread::sleep(SECOND * 2);
    assert_eq!(agent.ask("state r"), "Held");
}

#[test]
fn two_clients_of_one_process_contend_and_end_apart() {
    let place = Place::new();
    let counter = place.file("counter", "0");
    let clients = [place.client(), place.client()];
    let threads: Vec<_> = clients
        .iter()
        .map(|client| {
            let (client, counter) = (client.clone(), counter.clone());
            std::thread::spawn(move || {
                for _ in 0..100 {
                    let lease = blocking::acquire(client.lock("ctr")).unwrap();
                    increment(&counter);
                    drop(lease);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "200");
    let [first, second] = clients;
    let lease = blocking::acquire(second.lock("r").ttl(SECOND)).unwrap();
    drop(blocking::acquire(first.lock("other")).unwrap());
    assert_eq!(blocking::close(first, LONG), Closed::Clean);
    std::thread::sleep(SECOND * 2);
    assert_eq!(lease.state(), State::Held, "another client's end is not its own");
    let third = place.client();
    assert!(block_on(third.lock("r").try_acquire()).unwrap().is_none());
}

#[test]
fn a_fixed_term_is_whole_also_when_another_s_release_granted_it() {
    let place = Place::new();
    let (client, other) = (place.client(), place.client());
    let held = blocking::acquire(client.lock("r")).unwrap();
    let request = other.lock("r").ttl(SECOND * 60).fixed_term();
    let wait = std::thread::spawn(move || blocking::acquire(request).unwrap());
    eventually("it waits", || waiters(&client, "r") == 1);
    drop(held);
    let lease = join(wait);
    assert!(lease.valid_for() > SECOND * 30, "{:?} of a minute", lease.valid_for());
}

#[test]
fn a_broken_lock_is_not_anothers_before_its_holder_has_stopped() {
    let place = Place::new();
    let client = place.client();
    let mut agent = place.agent();
    agent.granted("acquire r 6000");
    agent.tell("work r");
    let wait = wait_for(&client, "r");
    block_on(client.break_("r", None, false)).unwrap();
    assert_eq!(agent.hear(), "lost broken");
    let began = Instant::now();
    let lease = join(wait); // the agent holds on to its guard: then the old term ends it
    assert!(began.elapsed() > SECOND, "its work was only just told to stop");
    assert_eq!(lease.previous(), Previous::Ended(Ended::Broken));
}

#[test]
fn what_is_left_by_its_term_outlives_the_process() {
    let place = Place::new();
    let client = place.client();
    let mut agent = place.agent();
    let old = agent.granted("acquire r 600000");
    assert_eq!(agent.ask("stay r 3000"), "Released");
    agent.kill();
    assert!(block_on(client.lock("r").try_acquire()).unwrap().is_none());
    // It stays for what the last renewal left of its term, so an operator has to end it here.
    block_on(client.break_("r", None, true)).unwrap();
    let lease = block_on(client.lock("r").try_acquire()).unwrap().unwrap();
    assert!(lease.token().get() > old);
}

#[test]
fn a_store_that_is_taken_away_ends_the_lease_with_a_reason() {
    let place = Place::new();
    let client = place.client();
    let lease = blocking::acquire(client.lock("r").ttl(SECOND * 2)).unwrap();
    std::fs::remove_file(place.0.path().join("locks.db")).unwrap();
    let lost = lease.lost();
    let loss = within(LONG, "told", move || block_on(lost));
    assert_eq!(loss, Loss::StoreReplaced);
}
