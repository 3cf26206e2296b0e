//! Waiters are woken: within a process at once, between processes by the poller or by a named lock.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Raw, claim};
use futures_lite::future::block_on;
use leasehold_core::{Admission, Claim, Cursor, Grant, Hint, Store};
use leasehold_mysql::{MysqlConfig, MysqlStore};

const LONG: Duration = Duration::from_secs(60);

fn open(options: &str) -> Arc<MysqlStore> {
    let url = common::url(common::server().port()) + options;
    Arc::new(block_on(MysqlStore::connect(MysqlConfig::from_url(&url).unwrap())).unwrap())
}

fn granted(store: &MysqlStore, claim: &Claim) -> Grant {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn waits(store: &MysqlStore, claim: &Claim) {
    let answer = block_on(store.enter(claim)).unwrap();
    assert!(matches!(answer, Admission::Waiting(_)), "{answer:?}");
}

fn heard(store: &Arc<MysqlStore>, claim: &Claim) -> std::thread::JoinHandle<Hint> {
    let (store, claim) = (Arc::clone(store), claim.clone());
    std::thread::spawn(move || {
        block_on(store.changed(&claim.resource, Some(claim.id), Cursor(0), LONG)).unwrap()
    })
}

#[test]
fn within_a_process_and_by_the_poller_the_grant_itself_is_told() {
    let (one, other) = (open(""), open(""));
    for waiter in [&one, &other] {
        let (held, next, later) = (claim("told"), claim("told"), claim("told"));
        granted(&one, &held);
        waits(waiter, &next);
        waits(waiter, &later);
        let (next_hears, later_hears) = (heard(waiter, &next), heard(waiter, &later));
        block_on(one.leave(&held.to_ref())).unwrap();
        let Hint::Granted(pushed) = next_hears.join().unwrap() else { panic!("it is granted") };
        assert_eq!(pushed.grant.claim, next.id);
        assert!(!later_hears.is_finished(), "only the next is woken");
        block_on(waiter.leave(&next.to_ref())).unwrap();
        let Hint::Granted(pushed) = later_hears.join().unwrap() else { panic!("it is granted") };
        assert_eq!(pushed.grant.claim, later.id);
        block_on(waiter.leave(&later.to_ref())).unwrap();
    }
}

/// How many named locks of leasehold somebody waits for.
fn lock_waiters(raw: &mut Raw) -> usize {
    let sql = "SELECT id FROM information_schema.processlist WHERE state = 'User lock'";
    raw.sql(sql).len()
}

#[test]
fn a_named_lock_wakes_who_stands_behind_its_claim() {
    let (one, other) = (open("?wake=get_lock"), open("?wake=get_lock"));
    let mut raw = Raw::new(common::server().port());
    let mut by_lock = 0;
    for round in 0..10 {
        let name = format!("woken-{round}");
        let (first, second, third) = (claim(&name), claim(&name), claim(&name));
        granted(&one, &first);
        waits(&one, &second);
        waits(&other, &third);
        block_on(one.leave(&first.to_ref())).unwrap();
        // The second has waited, so that it keeps its lock while it holds; the third waits for that.
        let end = Instant::now() + LONG;
        while lock_waiters(&mut raw) == 0 {
            assert!(Instant::now() < end, "nobody waits for the lock of a claim");
        }
        let hears = heard(&other, &third);
        block_on(one.leave(&second.to_ref())).unwrap();
        // The lock says that something happened, the poller says what.
        by_lock += usize::from(matches!(hears.join().unwrap(), Hint::Moved(_)));
        granted(&other, &third);
        block_on(other.leave(&third.to_ref())).unwrap();
    }
    assert!(by_lock >= 5, "only {by_lock} of 10 were woken by the lock");
}

#[test]
fn a_claim_that_is_gone_keeps_no_lock_and_no_connection() {
    let (one, other) = (open("?wake=get_lock"), open("?wake=get_lock"));
    let mut raw = Raw::new(common::server().port());
    let (held, waiter) = (claim("gone"), claim("gone"));
    granted(&one, &held);
    waits(&other, &waiter);
    block_on(other.leave(&waiter.to_ref())).unwrap();
    let kept = format!("SELECT IS_FREE_LOCK('leasehold_{}')", waiter.id);
    let end = Instant::now() + LONG;
    while raw.sql(&kept)[0][0] != "1" {
        assert!(Instant::now() < end, "the lock of a claim that has left is kept");
    }
    block_on(other.close());
    block_on(one.leave(&held.to_ref())).unwrap();
}
