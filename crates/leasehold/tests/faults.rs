//! The client over a store that fails, hangs and loses replies, and futures dropped at every point.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::{Fate, Verb, eventually, faulty, within};
use futures_lite::future::{block_on, poll_fn, poll_once};
use leasehold::blocking;
use leasehold::memory::Memory;
use leasehold::{
    AcquireError, CheckError, Client, Closed, ErrorKind, Lease, Loss, Observer, Release,
    ResourceName, State, Waiting,
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

fn name() -> ResourceName {
    ResourceName::new("r").unwrap()
}

fn entries(client: &Client) -> usize {
    block_on(client.inspect("r")).unwrap().entries.len()
}

fn kind(error: &AcquireError) -> Option<ErrorKind> {
    match error {
        AcquireError::Failed(error) => Some(error.kind()),
        _ => None,
    }
}

/// Polls this often, then drops; whether it was done before.
fn dropped_after<T>(polls: usize, future: impl Future<Output = T>) -> bool {
    let mut future = Box::pin(future);
    block_on(poll_fn(|cx| {
        for n in 0..polls {
            if n > 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
            if future.as_mut().poll(cx).is_ready() {
                return Poll::Ready(true);
            }
        }
        Poll::Ready(false)
    }))
}

#[test]
fn an_acquisition_dropped_at_any_point_leaves_nothing() {
    for anywhere in [true, false] {
        for contended in [true, false] {
            let memory = Memory::new();
            let other = memory.client().unwrap();
            let slow = |verb| if verb == Verb::Changed { Fate::Passes } else { Fate::Slow(2) };
            let client = faulty(&memory, anywhere, SECOND * 10, slow);
            for polls in 0..40 {
                let held = contended.then(|| blocking::acquire(other.lock("r")).unwrap());
                let mine = client.lock("r").ttl(SECOND * 600).acquire();
                let racing = async {
                    if polls % 3 == 0 {
                        drop(held); // granted meanwhile, perhaps
                    }
                    mine.await.map(drop)
                };
                dropped_after(polls, racing);
                let what = format!("anywhere {anywhere}, contended {contended}, {polls} polls");
                eventually(&what, || entries(&other) == 0);
            }
            let closed = within(LONG, "close", move || blocking::close(client, SECOND * 10));
            assert_eq!(closed, Closed::Clean);
        }
    }
}

#[test]
fn a_release_a_check_and_a_leave_by_term_dropped_at_any_point_go_on_or_change_nothing() {
    for anywhere in [true, false] {
        let memory = Memory::new();
        let client = faulty(&memory, anywhere, SECOND * 10, |_| Fate::Slow(2));
        let lease = || blocking::acquire(client.lock("r").ttl(SECOND * 600)).unwrap();
        for polls in 0..8 {
            dropped_after(polls, lease().release());
            eventually("released", || entries(&client) == 0);
            let held = lease();
            dropped_after(polls, held.check());
            assert_eq!(held.state(), State::Held);
            drop(held);
            eventually("dropped", || entries(&client) == 0);
            if !dropped_after(polls, lease().leave_by_term(SECOND)) {
                eventually("not left by its term", || entries(&client) == 0);
            } else {
                memory.forget(&name()).unwrap();
            }
        }
    }
}

#[test]
fn close_ends_those_who_wait_and_tells_those_who_work() {
    for anywhere in [true, false] {
        let memory = Memory::new();
        let other = memory.client().unwrap();
        let _held = blocking::acquire(other.lock("r")).unwrap();
        let client = faulty(&memory, anywhere, SECOND * 10, |_| Fate::Passes);
        let ended = Arc::new(AtomicUsize::new(0));
        let waits: Vec<_> = [None, None, Some(SECOND * 3600)]
            .into_iter()
            .map(|wait| {
                let request = client.lock("r");
                let request = match wait {
                    Some(span) => request.wait(span),
                    None => request,
                };
                let ended = Arc::clone(&ended);
                std::thread::spawn(move || {
                    let error = blocking::acquire(request).unwrap_err();
                    ended.fetch_add(1, Ordering::SeqCst);
                    error
                })
            })
            .collect();
        let lease = Arc::new(blocking::acquire(client.lock("other")).unwrap());
        let working = {
            let lease = Arc::clone(&lease);
            std::thread::spawn(move || block_on(lease.run(std::future::pending::<()>())))
        };
        eventually("one waits", || entries(&other) == 2);
        std::thread::sleep(Duration::from_millis(20)); // the others wait for their turns
        let clone = client.clone();
        let closed = within(LONG, "close", move || blocking::close(client, SECOND * 10));
        assert_eq!(closed, Closed::Clean, "anywhere {anywhere}");
        eventually("those who waited are told", || ended.load(Ordering::SeqCst) == 3);
        for wait in waits {
            assert_eq!(kind(&wait.join().unwrap()), Some(ErrorKind::Closed));
        }
        let lost = within(LONG, "work is cancelled", move || working.join().unwrap());
        assert_eq!(lost, Err(Loss::Closed));
        assert_eq!(lease.state(), State::Lost(Loss::Closed));
        assert_eq!(entries(&other), 1);
        assert!(block_on(other.inspect("other")).unwrap().entries.is_empty());
        let late = blocking::acquire(clone.lock("r").no_wait()).unwrap_err();
        assert_eq!(kind(&late), Some(ErrorKind::Closed));
        let lease = Arc::into_inner(lease).unwrap();
        assert!(matches!(blocking::release(lease), Release::AlreadyLost(Loss::Closed)));
    }
}

#[test]
fn no_call_takes_longer_than_a_call_may() {
    for anywhere in [true, false] {
        let memory = Memory::new();
        let hangs = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&hangs);
        let script = move |verb| {
            let hangs = told.load(Ordering::SeqCst) && verb != Verb::Enter;
            if hangs { Fate::Hangs } else { Fate::Passes }
        };
        let client = faulty(&memory, anywhere, Duration::from_millis(100), script);
        let lease = blocking::acquire(client.lock("r")).unwrap();
        hangs.store(true, Ordering::SeqCst);
        let (lease, found) = within(LONG, "check", move || {
            let found = block_on(lease.check());
            (lease, found)
        });
        let Err(CheckError::Unknown(error)) = found else { panic!("{found:?}") };
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let released = within(LONG, "release", move || blocking::release(lease));
        let Release::Unknown(error) = released else { panic!("{released:?}") };
        assert_eq!(error.applied(), leasehold::Applied::Maybe);
        hangs.store(false, Ordering::SeqCst);
        eventually("it goes on in the background", || entries(&client) == 0);
    }
}

/// Panics when it is told of this.
struct Fragile(&'static str);

impl Observer for Fragile {
    fn waiting(&self, _waiting: &Waiting) {
        assert_ne!(self.0, "waiting", "as it is meant to");
    }
    fn lost(&self, _loss: Loss) {
        assert_ne!(self.0, "lost", "as it is meant to");
    }
}

#[test]
fn an_observer_that_panics_where_it_waits_leaves_no_ghost() {
    let memory = Memory::new();
    let client = memory.client().unwrap();
    let lease = blocking::acquire(client.lock("r")).unwrap();
    let request = client.lock("r").observe(Arc::new(Fragile("waiting")));
    let panics = std::thread::spawn(move || blocking::acquire(request).map(drop));
    assert!(panics.join().is_err());
    eventually("its claim leaves", || entries(&client) == 1);
    drop(lease);
}

#[test]
fn an_observer_that_panics_when_a_client_is_closed_keeps_nothing_held() {
    let memory = Memory::new();
    let other = memory.client().unwrap();
    let client = memory.client().unwrap();
    let observer: Arc<dyn Observer> = Arc::new(Fragile("lost"));
    let leases: Vec<Lease> = (0..3)
        .map(|n| {
            let request = client.lock(&format!("r{n}")).observe(Arc::clone(&observer));
            blocking::acquire(request).unwrap()
        })
        .collect();
    let closed = std::thread::spawn(move || blocking::close(client, SECOND));
    assert!(closed.join().is_err());
    eventually("all leave", || {
        let free = |n| block_on(other.inspect(&format!("r{n}"))).unwrap().entries.is_empty();
        (0..3).all(free)
    });
    assert!(leases.iter().all(|l| l.state() == State::Lost(Loss::Closed)));
}

#[test]
fn an_observer_that_panics_on_the_driver_leaves_nobody_believing_or_waiting() {
    for anywhere in [true, false] {
        let memory = Memory::new();
        let other = memory.client().unwrap();
        let _held = blocking::acquire(other.lock("taken")).unwrap();
        let client = faulty(&memory, anywhere, SECOND * 10, |_| Fate::Passes);
        let request = client.lock("r").ttl(SECOND).observe(Arc::new(Fragile("lost")));
        let fragile = blocking::acquire(request).unwrap();
        let lease = blocking::acquire(client.lock("s").ttl(SECOND * 600)).unwrap();
        let request = client.lock("u").ttl(SECOND * 600).observe(Arc::new(Fragile("lost")));
        let as_fragile = blocking::acquire(request).unwrap();
        let wait = client.lock("taken").acquire();
        let waits = std::thread::spawn(move || block_on(wait));
        eventually("it waits", || block_on(other.inspect("taken")).unwrap().waiters().count() == 1);
        memory.forget(&name()).unwrap();
        let lost = lease.lost();
        let loss = within(LONG, "the other lease is told", move || block_on(lost));
        assert_eq!(loss, Loss::Unreachable);
        let error = within(LONG, "the wait ends", move || waits.join().unwrap().unwrap_err());
        assert!(kind(&error).is_some(), "{error:?}");
        eventually("the other claims leave", || {
            let count = |name| block_on(other.inspect(name)).unwrap().entries.len();
            count("s") == 0 && count("u") == 0 && count("taken") == 1
        });
        drop((fragile, as_fragile, lease));
    }
}

#[test]
fn a_broken_lock_is_not_anothers_before_its_holder_is_done() {
    let memory = Memory::new();
    let (client, other) = (memory.client().unwrap(), memory.client().unwrap());
    let lease = blocking::acquire(client.lock("r").ttl(SECOND * 3)).unwrap();
    block_on(other.break_("r", None, false)).unwrap();
    assert_eq!(blocking::until_lost(&lease), Loss::Broken);
    assert!(block_on(other.lock("r").try_acquire()).unwrap().is_none(), "work is still stopping");
    assert!(matches!(blocking::release(lease), Release::AlreadyLost(Loss::Broken)));
    eventually("free", || entries(&other) == 0);
}

#[test]
fn a_release_after_a_loss_says_why() {
    // The loss is known to the machine and was told to nobody yet, or was told.
    let memory = Memory::new();
    let client = memory.client().unwrap();
    for pause_us in [0, 50, 200, 1000, 5000] {
        let lease = blocking::acquire(client.lock("r").ttl(SECOND * 600)).unwrap();
        block_on(client.break_("r", None, false)).unwrap();
        assert!(matches!(block_on(lease.check()), Err(CheckError::Lost(Loss::Broken))));
        std::thread::sleep(Duration::from_micros(pause_us));
        let release = blocking::release(lease);
        assert!(matches!(release, Release::AlreadyLost(Loss::Broken)), "{release:?}");
        eventually("free", || entries(&client) == 0);
    }
}

#[test]
fn a_check_that_is_answered_after_the_end_of_belief_says_lost() {
    let memory = Memory::new();
    let script = |verb| match verb {
        Verb::Renew => Fate::Late(SECOND),
        _ => Fate::Passes,
    };
    let client = faulty(&memory, true, SECOND * 10, script);
    let request = client.lock("r").ttl(Duration::from_millis(300)).fixed_term();
    let lease = blocking::acquire(request).unwrap();
    let found = block_on(lease.check());
    assert!(matches!(found, Err(CheckError::Lost(_))), "{found:?}");
}

#[test]
fn a_claim_left_by_its_term_is_not_given_its_old_life_back_by_a_renewal_on_its_way() {
    let memory = Memory::new();
    let renews = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&renews);
    let script = move |verb| {
        let is_driver = std::thread::current().name() == Some("leasehold");
        if verb == Verb::Renew && is_driver {
            counted.fetch_add(1, Ordering::SeqCst);
            return Fate::Delayed(Duration::from_millis(100));
        }
        Fate::Passes
    };
    let client = faulty(&memory, true, SECOND * 10, script);
    let lease = blocking::acquire(client.lock("r").ttl(SECOND)).unwrap();
    eventually("a renewal is on its way", || renews.load(Ordering::SeqCst) > 0);
    let stays = block_on(lease.leave_by_term(SECOND * 600)).unwrap();
    assert!(matches!(stays, Release::Released));
    std::thread::sleep(Duration::from_millis(300));
    let queue = block_on(client.inspect("r")).unwrap();
    assert_eq!(queue.entries[0].life, leasehold::Life::Term);
}

#[test]
fn what_was_granted_is_kept_alive_though_nobody_looks() {
    let memory = Memory::new();
    let client = faulty(&memory, false, SECOND * 10, |_| Fate::Passes);
    block_on(async {
        let mut wait = Box::pin(client.lock("r").ttl(Duration::from_millis(400)).acquire());
        assert!(poll_once(&mut wait).await.is_none());
        eventually("it is granted", || entries(&client) == 1);
        std::thread::sleep(Duration::from_millis(1500)); // a runtime that is blocked
        let lease = wait.await.unwrap();
        assert_eq!(lease.state(), State::Held);
    });
}

#[test]
fn threads_count_exactly_through_faults() {
    for anywhere in [true, false] {
        let memory = Memory::new();
        let value = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..6)
            .map(|seed| {
                let mut state: u64 = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed + 1);
                let script = move |verb| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    match state % 16 {
                        // A word that never comes costs no more than the time to the next look,
                        // which is when the holder's term may end: too long for this test.
                        2 | 3 if verb == Verb::Changed => Fate::Fails,
                        0 => Fate::Fails,
                        1 => Fate::ReplyLost,
                        2 => Fate::HangsAfter,
                        3 => Fate::Hangs,
                        4 | 5 => Fate::Slow(3),
                        _ => Fate::Passes,
                    }
                };
                let client = faulty(&memory, anywhere, Duration::from_millis(20), script);
                let value = Arc::clone(&value);
                std::thread::spawn(move || {
                    let mut counted = 0;
                    for _ in 0..8 {
                        let request = client.lock("r").ttl(SECOND * 30).reach_within(LONG);
                        let lease: Lease = blocking::acquire(request).unwrap();
                        let seen = value.load(Ordering::SeqCst);
                        std::thread::yield_now();
                        assert_eq!(value.swap(seen + 1, Ordering::SeqCst), seen, "two inside");
                        counted += 1;
                        match counted % 3 {
                            0 => drop(lease),
                            1 => drop(blocking::release(lease)),
                            _ => {
                                dropped_after(1, lease.release());
                            }
                        }
                    }
                    client
                })
            })
            .collect();
        let clients: Vec<Client> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(value.load(Ordering::SeqCst), 48);
        eventually("nothing is left", || entries(&clients[0]) == 0);
    }
}
