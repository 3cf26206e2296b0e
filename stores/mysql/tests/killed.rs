//! Client processes that are killed, as `kill -9` does: in each state, and at any moment. Others wait
//! for what is left of a term or a place, and for nothing else.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Admission, Claim, ClaimRef, Grant, Place, Store, Token};
use leasehold_mysql::{MysqlConfig, MysqlStore};
use leasehold_testkit::block_on;
use leasehold_testkit::contest::PATIENCE;
use leasehold_testkit::doomed;
use leasehold_testkit::process::Process;
use leasehold_testkit::server::wait_until;

const ROLE: &str = "LEASEHOLD_MYSQL_TEST_AGENT";
/// Of the claims of those who are killed, and of their places.
const SHORT: Duration = Duration::from_secs(2);

/// Not a test: what the processes do that the tests of this file start, and kill.
#[test]
fn agent() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut role = role.split(' ');
    let mut word = || role.next().unwrap();
    let (state, url, name) = (word(), word(), word());
    println!("@begins");
    let config = MysqlConfig::from_url(url).unwrap();
    let store = block_on(MysqlStore::connect(config)).unwrap();
    doomed::act(&store, state, || short(name));
}

fn short(name: &str) -> Claim {
    Claim { term: SHORT, place: Place::Term(SHORT), ..common::claim(name) }
}

fn start(state: &str, name: &str) -> Process {
    start_at(&common::url(common::server().port()), state, name)
}

fn start_at(url: &str, state: &str, name: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "agent", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, format!("{state} {url} {name}"));
    Process::start(&mut command).unwrap()
}

fn kill(mut process: Process) {
    process.kill9().unwrap();
    assert!(!process.wait(PATIENCE).success());
}

/// The one who goes on.
fn survivor() -> Arc<MysqlStore> {
    let config = common::config(common::server().port());
    Arc::new(block_on(MysqlStore::connect(config)).unwrap())
}

fn until_granted(store: &MysqlStore, claim: &Claim) -> Grant {
    let end = Instant::now() + PATIENCE;
    loop {
        match block_on(store.enter(claim)) {
            Ok(Admission::Granted(grant)) => return grant,
            Ok(Admission::Gone(how)) => panic!("it is gone: {how}"),
            Ok(_) => {}
            Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
        }
        assert!(Instant::now() < end, "{:?} is not granted", claim.resource);
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn leave(store: &MysqlStore, claim: &Claim, grant: &Grant) {
    let named = ClaimRef { token: Some(grant.token), ..claim.to_ref() };
    block_on(store.leave(&named)).unwrap();
}

#[test]
fn a_holder_and_a_waiter_that_are_killed_cost_what_is_left_of_their_time() {
    let store = survivor();
    let holder = start("holding", "held");
    holder.wait_for("@there", PATIENCE);
    kill(holder);
    until_granted(&store, &common::claim("held"));

    let first = common::claim("queued");
    let grant = until_granted(&store, &first);
    let waiter = start("waiting", "queued");
    waiter.wait_for("@there", PATIENCE);
    let behind = common::claim("queued");
    assert!(matches!(block_on(store.enter(&behind)).unwrap(), Admission::Waiting(_)));
    kill(waiter);
    leave(&store, &first, &grant);
    until_granted(&store, &behind);
}

/// The lock is handed to one that stands still, and then dies.
#[test]
fn one_that_is_killed_when_the_lock_was_handed_to_it_costs_its_first_term() {
    let store = survivor();
    let first = common::claim("handed");
    let grant = until_granted(&store, &first);
    let waiter = start("waiting", "handed");
    waiter.wait_for("@there", PATIENCE);
    waiter.stop().unwrap();
    leave(&store, &first, &grant);
    let held = "SELECT h_claim IS NOT NULL FROM leasehold_resource WHERE name = 'handed'";
    let held = common::server().sql("leasehold", held);
    assert_eq!(held.trim(), "1", "it was handed over");
    kill(waiter);
    let next = until_granted(&store, &common::claim("handed"));
    assert!(next.token > grant.token);
}

/// The server still waits for the row on its behalf when it dies, and does then what it was asked.
#[test]
fn one_that_is_killed_in_the_middle_of_a_call_costs_a_term_at_most() {
    let store = survivor();
    for state in ["entering", "leaving", "renewing"] {
        let made = common::claim(state);
        let grant = until_granted(&store, &made);
        leave(&store, &made, &grant);
        let mut doomed = start(state, state);
        doomed.wait_for("@there", PATIENCE);
        let mut somebody = common::Raw::new(common::server().port());
        somebody.lock(state);
        doomed.write(b"go\n").unwrap();
        let blocked = "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
        let end = Instant::now() + PATIENCE;
        while somebody.sql(blocked).is_empty() {
            assert!(Instant::now() < end, "its call does not wait for the row");
            // The server looks at its transactions only when it was not asked for a tenth of a second.
            std::thread::sleep(Duration::from_millis(120));
        }
        kill(doomed);
        somebody.sql("COMMIT");
        let next = until_granted(&store, &common::claim(state));
        assert!(next.token > grant.token, "{state}");
    }
}

/// In whatever line of its code, and of the server's.
#[test]
fn those_that_are_killed_at_any_moment_leave_nothing() {
    let store = survivor();
    let mut newest: Option<Token> = None;
    for round in 0..12 {
        let both = [start("turning", "turns"), start("turning", "turns")];
        for process in &both {
            process.wait_for("@turn", PATIENCE);
        }
        // A few steps further each time.
        let end = Instant::now() + Duration::from_micros(1700 * round);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        both.into_iter().for_each(kill);
        let next = common::claim("turns");
        let grant = until_granted(&store, &next);
        assert!(Some(grant.token) > newest, "tokens rise");
        newest = Some(grant.token);
        leave(&store, &next, &grant);
    }
    wait_until("what the last two had asked for is over", PATIENCE, || {
        let queue = block_on(store.inspect(&common::name("turns"))).unwrap();
        if queue.entries.is_empty() { Ok(()) } else { Err(format!("{queue:?}")) }
    });
}

/// While it makes the tables: the next makes what is missing.
#[test]
fn one_that_is_killed_while_it_makes_the_tables_is_no_hindrance() {
    for round in 0..8 {
        let database = format!("killed_{round}");
        common::server().sql("mysql", &format!("CREATE DATABASE {database}"));
        let url = format!("mysql://root@127.0.0.1:{}/{database}", common::server().port());
        let doomed = start_at(&url, "holding", "r");
        doomed.wait_for("@begins", PATIENCE);
        std::thread::sleep(Duration::from_millis(4 * round));
        kill(doomed);
        let config = MysqlConfig::from_url(&url).unwrap();
        let store = block_on(MysqlStore::connect(config)).unwrap();
        until_granted(&store, &common::claim("r"));
    }
}
