//! The facade over the in-memory store, by a clock set by hand.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_lite::future::{block_on, or, poll_once, zip};
use leasehold::memory::Memory;
use leasehold::{
    AcquireError, CheckError, Closed, Ended, Loss, Previous, Release, ResourceName, State,
};

const SECOND: Duration = Duration::from_secs(1);

fn name() -> ResourceName {
    ResourceName::new("r").unwrap()
}

/// Polls until a condition holds; the driver's thread needs a moment of real time.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..5000 {
        if holds().await {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("not within ten seconds: {what}");
}

fn is_send_sync_static<T: Send + Sync + 'static>(_: &T) {}
fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn a_lease_is_held_and_released() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let lease = is_send(client.lock("r").acquire()).await.unwrap();
        is_send_sync_static(&lease);
        assert_eq!(lease.state(), State::Held);
        assert_eq!(lease.previous(), Previous::First);
        assert!(lease.valid_for() > SECOND * 28 && lease.valid_for() < SECOND * 30);
        let first = lease.token();
        assert!(client.lock("r").try_acquire().await.unwrap().is_none());
        assert!(matches!(lease.release().await, Release::Released));
        let next = client.lock("r").try_acquire().await.unwrap().unwrap();
        assert!(next.token() > first);
        assert_eq!(next.previous(), Previous::Ended(Ended::Released));
    });
}

#[test]
fn a_lease_is_renewed_for_as_long_as_it_is_held() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let lease = client.lock("r").ttl(SECOND * 30).acquire().await.unwrap();
        for _ in 0..20 {
            let before = lease.until();
            memory.advance(SECOND * 11);
            eventually("renewed", async || lease.until() > before).await;
        }
        assert_eq!(lease.state(), State::Held);
        let queue = client.inspect("r").await.unwrap();
        assert_eq!(queue.holders().count(), 1);
    });
}

#[test]
fn loss_is_told_in_time_and_is_final() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let lease = client.lock("r").ttl(SECOND * 30).acquire().await.unwrap();
        let lost = lease.lost();
        let elsewhere = lost.clone();
        memory.fail_calls(true);
        memory.advance(SECOND * 21);
        eventually("at risk", async || lease.state() == State::AtRisk).await;
        memory.advance(SECOND * 8 + SECOND / 2);
        assert!(matches!(lease.state(), State::Lost(_)), "told before the term of 30 s ends");
        assert_eq!(lost.await, Loss::Unreachable);
        assert_eq!(elsewhere.await, Loss::Unreachable);
        memory.fail_calls(false);
        memory.advance(SECOND);
        assert_eq!(lease.state(), State::Lost(Loss::Unreachable));
        assert!(matches!(lease.release().await, Release::AlreadyLost(Loss::Unreachable)));
        eventually("the claim has left", async || {
            memory.advance(SECOND);
            client.inspect("r").await.unwrap().entries.is_empty()
        })
        .await;
    });
}

#[test]
fn work_is_cancelled_when_the_lease_is_lost() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let lease = client.lock("r").fixed_term().ttl(SECOND * 30).acquire().await.unwrap();
        assert_eq!(lease.run(async { 7 }).await, Ok(7));
        let work = lease.run(std::future::pending::<()>());
        let pass = async {
            memory.advance(SECOND * 31);
            std::future::pending::<Result<(), Loss>>().await
        };
        assert_eq!(or(work, pass).await, Err(Loss::Expired));
        // Work that was done, but too late, is not called done in time.
        assert_eq!(lease.run(async { 7 }).await, Err(Loss::Expired));
    });
}

#[test]
fn a_dropped_lease_is_released_in_the_background() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        drop(client.lock("r").acquire().await.unwrap());
        eventually("free", async || client.inspect("r").await.unwrap().entries.is_empty()).await;
    });
}

#[test]
fn a_dropped_wait_leaves_the_queue() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let (here, there) = (memory.client().unwrap(), memory.client().unwrap());
        let lease = here.lock("r").acquire().await.unwrap();
        let mut wait = Box::pin(there.lock("r").acquire());
        assert!(poll_once(&mut wait).await.is_none());
        let waiters = async || here.inspect("r").await.unwrap().waiters().count();
        assert_eq!(waiters().await, 1);
        drop(wait);
        eventually("nobody waits", async || waiters().await == 0).await;
        assert!(matches!(lease.release().await, Release::Released));
    });
}

#[test]
fn a_grant_to_a_dropped_wait_is_given_back() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let (here, there) = (memory.client().unwrap(), memory.client().unwrap());
        let lease = here.lock("r").acquire().await.unwrap();
        let mut wait = Box::pin(there.lock("r").acquire());
        assert!(poll_once(&mut wait).await.is_none());
        let _ = lease.release().await;
        eventually("it holds", async || here.inspect("r").await.unwrap().holders().count() == 1)
            .await;
        drop(wait); // never polled again, so it never took the lease
        eventually("free", async || here.inspect("r").await.unwrap().entries.is_empty()).await;
    });
}

#[test]
fn a_wait_ends_when_its_time_is_up_in_the_store_and_in_the_process() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let other = memory.client().unwrap();
        let _lease = other.lock("r").ttl(SECOND * 3600).acquire().await.unwrap();
        let in_store = client.lock("r").wait(SECOND * 5).acquire();
        let in_process = client.lock("r").wait(SECOND * 5).acquire();
        let mut both = Box::pin(zip(in_store, in_process));
        assert!(poll_once(&mut both).await.is_none());
        let waiters = client.inspect("r").await.unwrap().waiters().count();
        assert_eq!(waiters, 1, "one of a process stands in the store's queue");
        memory.advance(SECOND * 6);
        let (first, second) = both.await;
        assert!(matches!(first, Err(AcquireError::TimedOut(_))), "{first:?}");
        assert!(matches!(second, Err(AcquireError::TimedOut(_))), "{second:?}");
    });
}

#[test]
fn a_deadline_that_has_passed_is_a_try() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let now = std::time::Instant::now();
        let lease = client.lock("r").deadline(now).acquire().await.unwrap();
        let busy = client.lock("r").deadline(now).acquire().await.unwrap_err();
        assert!(matches!(busy, AcquireError::Busy(_)), "{busy:?}");
        drop(lease);
    });
}

#[test]
fn tasks_of_a_process_take_turns_each_with_its_own_token() {
    let memory = Memory::new();
    let client = memory.client().unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (client, inside) = (client.clone(), Arc::clone(&inside));
            std::thread::spawn(move || {
                let mut tokens = Vec::new();
                for _ in 0..50 {
                    let lease = leasehold::blocking::acquire(client.lock("r")).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    tokens.push(lease.token().get());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert!(matches!(leasehold::blocking::release(lease), Release::Released));
                }
                tokens
            })
        })
        .collect();
    let mut tokens: Vec<u64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    assert_eq!(tokens.len(), 400);
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 400, "every turn has a token of its own");
}

#[test]
fn the_same_holder_re_enters_also_past_those_who_wait() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let holder = client.new_holder(Some("me")).unwrap();
        let outer = client.lock("r").holder(&holder).acquire().await.unwrap();
        let mut waits = Box::pin(client.lock("r").acquire());
        assert!(poll_once(&mut waits).await.is_none());
        let inner = client.lock("r").holder(&holder).acquire().await.unwrap();
        assert_eq!(inner.token(), outer.token());
        assert!(matches!(outer.release().await, Release::Released));
        assert_eq!(inner.state(), State::Held);
        assert!(poll_once(&mut waits).await.is_none());
        assert!(matches!(inner.release().await, Release::Released));
        let next = waits.await.unwrap();
        assert_ne!(next.holder().id, holder.id, "a label or a task never re-enters");
    });
}

#[test]
fn shared_leases_stand_together_and_permits_have_slots() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let a = client.lock("r").shared().acquire().await.unwrap();
        let b = client.lock("r").shared().acquire().await.unwrap();
        assert!(b.token() > a.token());
        assert!(client.lock("r").try_acquire().await.unwrap().is_none());
        let one = client.lock("s").permits(2, 3).acquire().await.unwrap();
        let two = client.lock("s").permits(1, 3).acquire().await.unwrap();
        assert_eq!((one.slots().to_string(), two.slots().to_string()), ("0,1".into(), "2".into()));
        assert!(client.lock("s").permits(1, 3).try_acquire().await.unwrap().is_none());
        let other = client.lock("s").permits(1, 4).try_acquire().await.unwrap_err();
        assert_eq!(other.kind(), leasehold::ErrorKind::Usage);
    });
}

#[test]
fn a_lost_reply_makes_no_second_claim() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        memory.lose_replies(true);
        let mut wait = Box::pin(client.lock("r").acquire());
        assert!(poll_once(&mut wait).await.is_none());
        memory.lose_replies(false);
        let lease = {
            let step = async {
                loop {
                    memory.advance(SECOND);
                    futures_lite::future::yield_now().await;
                    std::thread::sleep(Duration::from_millis(2));
                }
            };
            or(wait, step).await.unwrap()
        };
        let queue = client.inspect("r").await.unwrap();
        assert_eq!(queue.entries.len(), 1);
        assert_eq!(queue.entries[0].claim, lease.claim_id());
    });
}

#[test]
fn a_check_asks_the_store() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let lease = client.lock("r").acquire().await.unwrap();
        lease.check().await.unwrap();
        memory.fail_calls(true);
        assert!(matches!(lease.check().await, Err(CheckError::Unknown(_))));
        assert_eq!(lease.state(), State::Held, "an unclear answer ends nothing");
        memory.fail_calls(false);
        memory.forget(&name()).unwrap();
        let found = lease.check().await;
        assert!(matches!(found, Err(CheckError::Lost(Loss::Failover))), "{found:?}");
        assert_eq!(lease.lost().await, Loss::Failover);
    });
}

#[test]
fn a_broken_holder_is_told_at_its_next_renewal() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let lease = client.lock("r").acquire().await.unwrap();
        client.break_("r", Some(lease.token()), false).await.unwrap();
        assert_eq!(lease.state(), State::Held);
        memory.advance(SECOND * 11);
        assert_eq!(lease.lost().await, Loss::Broken);
        drop(lease); // its work has stopped
        eventually("it has left", async || client.inspect("r").await.unwrap().entries.is_empty())
            .await;
    });
}

#[test]
fn closing_releases_everything_and_refuses_more() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let watcher = memory.client().unwrap();
        let lease = client.lock("a").acquire().await.unwrap();
        let _other = client.lock("b").acquire().await.unwrap();
        let clone = client.clone();
        assert_eq!(client.close(SECOND * 5).await, Closed::Clean);
        assert!(watcher.inspect("a").await.unwrap().entries.is_empty());
        assert!(watcher.inspect("b").await.unwrap().entries.is_empty());
        assert_eq!(lease.state(), State::Lost(Loss::Closed));
        let refused = clone.lock("a").acquire().await.unwrap_err();
        assert!(
            matches!(refused, AcquireError::Failed(e) if e.kind() == leasehold::ErrorKind::Closed)
        );
    });
}

#[test]
fn bad_requests_are_refused_before_anything_is_done() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        let refused = |request: leasehold::Request| async {
            match request.acquire().await {
                Err(AcquireError::Failed(error)) => error.kind(),
                other => panic!("{other:?}"),
            }
        };
        let usage = leasehold::ErrorKind::Usage;
        assert_eq!(refused(client.lock("")).await, usage);
        assert_eq!(refused(client.lock("a\n")).await, usage);
        assert_eq!(refused(client.lock("r").ttl(Duration::ZERO)).await, usage);
        assert_eq!(refused(client.lock("r").ttl(SECOND * 1_000_000)).await, usage);
        assert_eq!(refused(client.lock("r").permits(0, 3)).await, usage);
        assert_eq!(refused(client.lock("r").permits(4, 3)).await, usage);
        assert_eq!(refused(client.lock("r").permits(1, 100_000)).await, usage);
        assert!(client.list(&leasehold::Page::default()).await.unwrap().is_empty());
    });
}

#[test]
fn a_store_that_does_not_answer_fails_the_acquisition_in_time() {
    block_on(async {
        let memory = Memory::with_hand_clock();
        let client = memory.client().unwrap();
        memory.hold_back(true);
        let mut wait = Box::pin(client.lock("r").acquire());
        assert!(poll_once(&mut wait).await.is_none());
        memory.advance(SECOND * 11);
        let failed = wait.await.unwrap_err();
        let AcquireError::Failed(error) = failed else { panic!("{failed:?}") };
        assert_eq!(error.kind(), leasehold::ErrorKind::Unreachable);
        memory.hold_back(false);
    });
}

async fn once_round(client: leasehold::Client) {
    let lease = client.lock("r").acquire().await.unwrap();
    assert_eq!(lease.run(async { 7 }).await, Ok(7));
    let waits = client.lock("r").acquire();
    let release = async {
        assert!(matches!(lease.release().await, Release::Released));
    };
    let (next, ()) = zip(waits, release).await;
    assert!(matches!(next.unwrap().release().await, Release::Released));
}

#[test]
fn the_futures_need_no_particular_runtime() {
    let memory = Memory::new();
    let work = || once_round(memory.client().unwrap());
    tokio::runtime::Builder::new_multi_thread().build().unwrap().block_on(work());
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work());
    smol::block_on(work());
    block_on(work());
    bare(work());
}

/// The least an executor can be.
fn bare<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = Box::pin(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn the_blocking_face_works_inside_a_runtime() {
    let memory = Memory::new();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let client = memory.client().unwrap();
        let lease = leasehold::blocking::acquire(client.lock("r")).unwrap();
        assert!(matches!(leasehold::blocking::release(lease), Release::Released));
    });
}
