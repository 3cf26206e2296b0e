//! Clients that contend for a lock while something hurts them, and the judgement over it: of
//! beliefs, of tokens, and of what the protected thing has seen.
// Each test program uses a part of it.
#![allow(dead_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold::{AcquireError, Client, Lease};
use leasehold_core::{Access, Clock, Mark, Marks, Moment, Token};
use leasehold_net::BootClock;

/// What is protected: it remembers marks, and every belief of which it was told.
#[derive(Debug, Default)]
pub(crate) struct Thing {
    marks: Marks,
    accepted: Vec<(Token, u64)>,
    pub(crate) refused: usize,
    beliefs: Vec<Belief>,
}

/// From when until when a client believed to hold.
#[derive(Debug, Clone, Copy)]
struct Belief {
    token: Token,
    from: Moment,
    to: Moment,
}

/// The contest.
#[derive(Debug, Default)]
pub(crate) struct Contest {
    pub(crate) thing: Arc<Mutex<Thing>>,
    over: Arc<AtomicBool>,
    pub(crate) rounds: Arc<AtomicU64>,
    excused: Mutex<Vec<(Moment, Moment)>>,
}

impl Contest {
    /// A client that takes the lock, uses the thing and gives it back, again and again.
    pub(crate) fn join(&self, number: u64, client: Client, name: &str) -> JoinHandle<()> {
        let (thing, over) = (Arc::clone(&self.thing), Arc::clone(&self.over));
        let (rounds, name) = (Arc::clone(&self.rounds), name.to_owned());
        std::thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let wish = client.lock(&name).ttl(Duration::from_secs(2));
                match block_on(wish.wait(Duration::from_secs(2)).acquire()) {
                    Ok(lease) => {
                        hold(number, &lease, &thing);
                        rounds.fetch_add(1, Ordering::SeqCst);
                        drop(block_on(lease.release()));
                    }
                    Err(AcquireError::Busy(_) | AcquireError::TimedOut(_)) => {}
                    Err(AcquireError::Failed(error)) => {
                        assert!(error.kind().is_transient(), "{error}");
                    }
                }
            }
            let _ = block_on(client.close(Duration::from_secs(10)));
        })
    }

    /// Waits for so many more rounds: after healing there is progress.
    pub(crate) fn until_rounds(&self, more: u64) {
        let from = self.rounds.load(Ordering::SeqCst);
        leasehold_testkit::server::wait_until("progress", Duration::from_secs(60), || {
            let done = self.rounds.load(Ordering::SeqCst) - from;
            if done >= more { Ok(()) } else { Err(format!("{done} of {more} rounds")) }
        });
    }

    /// From when until when the server was seen to end leases that live: beliefs that begin then are
    /// not held against the one before. Tokens are.
    pub(crate) fn excuse(&self, from: Moment, to: Moment) {
        self.excused.lock().unwrap().push((from, to));
    }

    /// Ends it, and judges.
    pub(crate) fn end(&self, clients: Vec<JoinHandle<()>>) {
        self.over.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
        let thing = self.thing.lock().unwrap();
        let excused = self.excused.lock().unwrap();
        let mut beliefs = thing.beliefs.clone();
        beliefs.sort_by_key(|belief| belief.from);
        for pair in beliefs.windows(2) {
            let [one, next] = pair else { continue };
            let excused = excused.iter().any(|(from, to)| *from <= next.from && next.from <= *to);
            assert!(excused || one.to <= next.from, "two believe at once: {one:?} and {next:?}");
            assert!(one.token < next.token, "tokens do not rise: {one:?} and {next:?}");
        }
        let tokens: Vec<Token> = thing.accepted.iter().map(|(token, _)| *token).collect();
        assert!(tokens.is_sorted(), "an older token was let in: {tokens:?}");
    }
}

/// Uses the thing for a while, as long as the lease is believed; the belief is written down: from the
/// grant until it was over or was last seen to be held.
fn hold(client: u64, lease: &Lease, thing: &Arc<Mutex<Thing>>) {
    let from = BootClock.now();
    let mut to = from;
    let mark = Mark::from(lease.token());
    for step in 0..3 {
        if !believed(lease, &mut to) {
            break;
        }
        {
            let mut thing = thing.lock().unwrap();
            match thing.marks.admit(Access::Exclusive, mark) {
                Ok(raised) => {
                    thing.marks = raised;
                    thing.accepted.push((lease.token(), client * 10 + step));
                }
                Err(_) => thing.refused += 1,
            }
        }
        let used = BootClock.now() + Duration::from_millis(3);
        while BootClock.now() < used && believed(lease, &mut to) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    if to > from {
        let belief = Belief { token: lease.token(), from, to };
        thing.lock().unwrap().beliefs.push(belief);
    }
}

/// Whether the lease is held; then it was at `to`, which is read before.
fn believed(lease: &Lease, to: &mut Moment) -> bool {
    let now = BootClock.now();
    let is_held = now < lease.until() && matches!(lease.state(), leasehold::State::Held);
    if is_held {
        *to = now;
    }
    is_held
}
