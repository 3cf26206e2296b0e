//! The two histories of "How to do distributed locking" (Kleppmann, 2016): what the lock alone
//! does, and what the fence saves.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Behind, claim, durable, fresh, granted, named, open, renew, start, until_granted};
use leasehold_core::{Access, Clock, Mark, Marks, Renewed};
use leasehold_net::BootClock;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::FakeTime;
use leasehold_testkit::server::redis::{Options, Redis};

/// A holder pauses for longer than its term, and writes when it wakes.
#[test]
fn a_pause_outlives_the_term() {
    let servers = start();
    let (paused, other) = (open(&servers), open(&servers));
    let name = fresh("pause");
    let first = claim(&name, Duration::from_secs(1));
    let one = granted(&paused, &first);
    // It says nothing meanwhile; the lock goes to the other.
    let two =
        until_granted(&other, &claim(&name, Duration::from_secs(20)), Duration::from_secs(20));
    assert!(BootClock.now() >= one.until, "a holder that looks at its clock would have known");
    assert!(matches!(renew(&paused, &named(&first, &one)), Renewed::Gone(_)));
    // Whoever does not look writes all the same. The fence has seen the newer token.
    let fence = Marks::default().admit(Access::Exclusive, Mark::from(two.token)).unwrap();
    fence.admit(Access::Exclusive, Mark::from(one.token)).unwrap_err();
}

/// A member's clock jumps forward, and it lets a holder go that is as good as its majority.
#[test]
fn a_clock_jumps_at_a_member_that_a_majority_needs() {
    let time = Arc::new(FakeTime::new());
    let mut servers = start();
    servers[2] = Redis::with(Options { time: Some(Arc::clone(&time)), ..durable() });
    let (one, two) = (Behind::of(&servers), Behind::of(&servers));
    one.proxies[3..].iter().for_each(Proxy::pause);
    let (name, term) = (fresh("jump"), Duration::from_secs(20));
    let first = granted(&one.store, &claim(&name, term));
    time.step(3600);
    two.proxies[..2].iter().for_each(Proxy::pause);
    let second = until_granted(&two.store, &claim(&name, term), term);
    // The lock alone: two believe.
    assert!(BootClock.now() < first.until.min(second.until), "both still believe");
    // The tokens are in order, for that member is common to both, and the fence tells them apart.
    assert!(second.token > first.token);
    let fence = Marks::default().admit(Access::Exclusive, Mark::from(second.token)).unwrap();
    fence.admit(Access::Exclusive, Mark::from(first.token)).unwrap_err();
}
