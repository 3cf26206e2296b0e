//! The tempting single statement, and a server whose clock steps.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Raw, claim};
use futures_lite::future::block_on;
use leasehold_core::{
    Admission, Claim, ClaimRef, Cursor, Ended, Grant, Mode, Place, QueueState, Renewed, Store,
};
use leasehold_mysql::{Clocks, MysqlStore};
use leasehold_testkit::server::FakeTime;
use leasehold_testkit::server::mariadb::{MariaDb, Options};

const PATIENCE: Duration = Duration::from_secs(60);

fn open(port: u16) -> Arc<MysqlStore> {
    Arc::new(block_on(MysqlStore::connect(common::config(port))).unwrap())
}

fn granted(store: &MysqlStore, claim: &Claim) -> Grant {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn named(claim: &Claim, grant: &Grant) -> ClaimRef {
    ClaimRef { token: Some(grant.token), ..claim.to_ref() }
}

/// Waits until this many statements wait for a row's lock.
fn wait_for_waiters(raw: &mut Raw, count: usize) {
    let waiting = "SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    let end = Instant::now() + PATIENCE;
    while raw.sql(waiting).len() < count {
        assert!(Instant::now() < end, "nobody waits for the lock");
        // The server looks at its transactions only when it was not asked for a tenth of a second.
        std::thread::sleep(Duration::from_millis(120));
    }
}

/// One permit, a row's lock that two wait for, and what admits them: how many are in.
fn admitted(server: &MariaDb, admit: impl Fn(usize) + Sync, count: impl Fn() -> usize) -> usize {
    let mut raw = Raw::new(server.port());
    raw.lock("race");
    std::thread::scope(|scope| {
        for n in 0..2 {
            let admit = &admit;
            scope.spawn(move || admit(n));
        }
        wait_for_waiters(&mut raw, 2);
        raw.sql("COMMIT");
    });
    count()
}

/// It takes the lock and counts in one statement: what it counts is from before the lock.
#[test]
fn the_single_statement_grants_twice_and_the_store_does_not() {
    let server = MariaDb::start();
    server.sql("mysql", "CREATE DATABASE leasehold");
    let port = server.port();
    let stores = [open(port), open(port)];
    let first = claim("race");
    let first = named(&first, &granted(&stores[0], &first));
    block_on(stores[0].leave(&first)).unwrap();
    server.sql("leasehold", "CREATE TABLE planted (n INT NOT NULL) ENGINE=InnoDB");
    let single = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
        INSERT INTO planted SELECT 1 FROM \
        (SELECT name FROM leasehold_resource WHERE name = 'race' FOR UPDATE) AS locked \
        WHERE (SELECT COUNT(*) FROM planted) < 1";
    let planted = admitted(
        &server,
        |_| drop(server.sql("leasehold", single)),
        || server.sql("leasehold", "SELECT COUNT(*) FROM planted").trim().parse().unwrap(),
    );
    assert_eq!(planted, 2, "the planted bug shows");
    let permit = Mode::Permits { count: 1, limit: 1 };
    let ours = admitted(
        &server,
        |n| {
            let attempt = Claim { mode: permit, place: Place::No, ..claim("race") };
            block_on(stores[n].enter(&attempt)).unwrap();
        },
        || block_on(stores[0].inspect(&common::name("race"))).unwrap().entries.len(),
    );
    assert_eq!(ours, 1, "one permit of one");
}

/// Whether a grant that waited for its row's lock begins when the lock was free, or before.
fn begins_after_the_wait(store: &MysqlStore, port: u16, name: &str) -> bool {
    let first = claim(name);
    let first = named(&first, &granted(store, &first));
    block_on(store.leave(&first)).unwrap();
    let mut raw = Raw::new(port);
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "it is not granted");
        raw.lock(name);
        let next = claim(name);
        let (answer, freed) = std::thread::scope(|scope| {
            let entering = scope.spawn(|| block_on(store.enter(&next)));
            wait_for_waiters(&mut raw, 1);
            let now = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";
            let freed: u64 = raw.sql(now)[0][0].parse().unwrap();
            raw.sql("COMMIT");
            (entering.join().unwrap(), freed)
        });
        let since = format!("SELECT h_since FROM leasehold_resource WHERE name = '{name}'");
        match answer {
            Ok(Admission::Granted(_)) => {
                return raw.sql(&since)[0][0].parse::<u64>().unwrap() >= freed;
            }
            // On a slow machine it may have waited for too long.
            Err(error) => assert!(error.kind().is_transient(), "{error}"),
            Ok(other) => panic!("{other:?}"),
        }
        block_on(store.leave(&next.to_ref())).unwrap();
    }
}

#[test]
fn a_term_begins_after_the_wait_for_the_row_and_with_now_it_would_not() {
    let port = common::server().port();
    let planted = Clocks {
        server: "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)".to_owned(),
        ..Clocks::default()
    };
    let planted = MysqlStore::connect_on(common::config(port), planted);
    let planted = block_on(planted).unwrap();
    assert!(!begins_after_the_wait(&planted, port, "planted"), "the planted bug shows");
    assert!(begins_after_the_wait(&open(port), port, "ours"), "the wait is part of the term");
}

fn on_fake_time() -> (Arc<FakeTime>, MariaDb) {
    let time = Arc::new(FakeTime::new());
    let options = Options { time: Some(Arc::clone(&time)), ..Options::default() };
    let server = MariaDb::with(options);
    server.sql("mysql", "CREATE DATABASE leasehold");
    (time, server)
}

#[test]
fn a_clock_that_steps_forward_ends_terms_and_that_is_told() {
    let (time, server) = on_fake_time();
    let (store, other) = (open(server.port()), open(server.port()));
    let held = Claim { term: Duration::from_secs(60), ..claim("forward") };
    let grant = granted(&store, &held);
    let reference = named(&held, &grant);
    let answer = block_on(common::renew(&*store, &reference));
    assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
    time.step(3600);
    let next = granted(&other, &claim("forward"));
    assert!(next.token > grant.token);
    let answer = block_on(common::renew(&*store, &reference));
    assert!(matches!(answer, Renewed::Gone(Ended::Clock)), "{answer:?}");
    assert!(block_on(store.disturbed(Cursor(0))) > Cursor(0), "all that hold are to renew");
}

#[test]
fn a_clock_that_steps_back_blocks_nobody_for_that_long() {
    let (time, server) = on_fake_time();
    let (store, other) = (open(server.port()), open(server.port()));
    let held = Claim { term: Duration::from_secs(3), ..claim("back") };
    let grant = granted(&store, &held);
    let shared = Claim { mode: Mode::Shared, term: Duration::from_secs(3), ..claim("back-shared") };
    granted(&store, &shared);
    time.step(-3600);
    // It still has its term, and no more than that.
    let queue = block_on(other.inspect(&held.resource)).unwrap();
    let QueueState::Granted { left, .. } = queue.entries[0].state else { panic!("{queue:?}") };
    assert!(left <= held.term, "{left:?} are left of {:?}", held.term);
    for name in ["back", "back-shared"] {
        let next = claim(name);
        let end = Instant::now() + PATIENCE;
        let next = loop {
            match block_on(other.enter(&next)).unwrap() {
                Admission::Granted(next) => break next,
                other => assert!(Instant::now() < end, "it is kept for an hour: {other:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(next.token > grant.token || name != "back", "though the clock went back");
    }
    let answer = block_on(common::renew(&*store, &named(&held, &grant)));
    assert!(matches!(answer, Renewed::Gone(_)), "{answer:?}");
}

/// An hour's step while some hold and some wait: whatever is believed, all get in in the end.
#[test]
fn a_clock_that_steps_to_and_fro_leaves_everybody_served() {
    let (time, server) = on_fake_time();
    let stores = [open(server.port()), open(server.port())];
    for (n, seconds) in [3600, -3600, 0].into_iter().enumerate() {
        let name = format!("fro-{n}");
        let term = Duration::from_secs(2);
        let place = Place::Term(Duration::from_secs(1));
        let claims: Vec<Claim> = (0..4).map(|_| Claim { term, place, ..claim(&name) }).collect();
        for (n, claim) in claims.iter().enumerate() {
            block_on(stores[n % 2].enter(claim)).unwrap();
        }
        time.step(seconds);
        let next = claim(&name);
        let end = Instant::now() + PATIENCE;
        while !matches!(block_on(stores[0].enter(&next)).unwrap(), Admission::Granted(_)) {
            assert!(Instant::now() < end, "not served after a step of {seconds} s");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
