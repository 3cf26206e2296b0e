//! Client processes that are killed, as `kill -9` does: in each state, and at any moment. Others wait
//! for what is left of a term or a place, and for nothing else.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Admission, Claim, ClaimRef, Grant, Place, Store, Token};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::block_on;
use leasehold_testkit::contest::PATIENCE;
use leasehold_testkit::doomed;
use leasehold_testkit::process::Process;
use leasehold_testkit::server::wait_until;
use tokio_postgres::NoTls;

const ROLE: &str = "LEASEHOLD_POSTGRES_TEST_AGENT";
/// Of the claims of those who are killed, and of their places.
const SHORT: Duration = Duration::from_secs(2);

/// Not a test: what the processes do that the tests of this file start, and kill.
#[test]
fn agent() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut role = role.split(' ');
    let mut word = || role.next().unwrap();
    let (state, port, schema, name) = (word(), word().parse().unwrap(), word(), word());
    println!("@begins");
    let store = block_on(PostgresStore::connect(common::config(port, schema))).unwrap();
    doomed::act(&store, state, || short(name));
}

fn short(name: &str) -> Claim {
    Claim { term: SHORT, place: Place::Term(SHORT), ..common::claim(name) }
}

fn start(state: &str, schema: &str, name: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "agent", "--nocapture", "--test-threads=1"]);
    let port = common::server().port();
    command.env(ROLE, format!("{state} {port} {schema} {name}"));
    Process::start(&mut command).unwrap()
}

fn kill(mut process: Process) {
    process.kill9().unwrap();
    assert!(!process.wait(PATIENCE).success());
}

/// A schema with the tables in it, and the one who goes on.
fn world() -> (String, Arc<PostgresStore>) {
    let schema = common::schema();
    let config = common::config(common::server().port(), &schema);
    let store = block_on(PostgresStore::connect(config)).unwrap();
    (schema, Arc::new(store))
}

fn until_granted(store: &PostgresStore, claim: &Claim) -> Grant {
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

fn leave(store: &PostgresStore, claim: &Claim, grant: &Grant) {
    let named = ClaimRef { token: Some(grant.token), ..claim.to_ref() };
    block_on(store.leave(&named)).unwrap();
}

#[test]
fn a_holder_and_a_waiter_that_are_killed_cost_what_is_left_of_their_time() {
    let (schema, store) = world();
    let holder = start("holding", &schema, "held");
    holder.wait_for("@there", PATIENCE);
    kill(holder);
    until_granted(&store, &common::claim("held"));

    let first = common::claim("queued");
    let grant = until_granted(&store, &first);
    let waiter = start("waiting", &schema, "queued");
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
    let (schema, store) = world();
    let first = common::claim("r");
    let grant = until_granted(&store, &first);
    let waiter = start("waiting", &schema, "r");
    waiter.wait_for("@there", PATIENCE);
    waiter.stop().unwrap();
    leave(&store, &first, &grant);
    let label = format!("SELECT h_claim IS NOT NULL FROM {schema}.leasehold_resource");
    assert_eq!(common::server().sql(&label), "t", "it was handed over");
    kill(waiter);
    let next = until_granted(&store, &common::claim("r"));
    assert!(next.token > grant.token);
}

/// The server still waits for the row on its behalf when it dies, and does then what it was asked.
#[test]
fn one_that_is_killed_in_the_middle_of_a_call_costs_a_term_at_most() {
    let (schema, store) = world();
    let runtime = common::runtime();
    for state in ["entering", "leaving", "renewing"] {
        let made = common::claim(state);
        let grant = until_granted(&store, &made);
        leave(&store, &made, &grant);
        let mut doomed = start(state, &schema, state);
        doomed.wait_for("@there", PATIENCE);
        let mut somebody = tokio_postgres::Config::new();
        somebody.host("127.0.0.1").port(common::server().port());
        somebody.user("postgres").dbname("postgres");
        let somebody = runtime.block_on(async {
            let (client, connection) = somebody.connect(NoTls).await.unwrap();
            tokio::spawn(connection);
            let lock = format!(
                "BEGIN; SELECT 1 FROM {schema}.leasehold_resource WHERE name = '{state}' FOR UPDATE"
            );
            client.batch_execute(&lock).await.unwrap();
            client
        });
        doomed.write(b"go\n").unwrap();
        let blocked = format!(
            "SELECT count(*) FROM pg_stat_activity
              WHERE wait_event_type = 'Lock' AND query LIKE 'CALL {schema}.leasehold_serve%'"
        );
        wait_until("its call waits for the row", PATIENCE, || {
            let found = common::server().sql(&blocked);
            if found == "1" { Ok(()) } else { Err(found) }
        });
        kill(doomed);
        runtime.block_on(somebody.batch_execute("COMMIT")).unwrap();
        let next = until_granted(&store, &common::claim(state));
        assert!(next.token > grant.token, "{state}");
    }
}

/// In whatever line of its code, and of the server's.
#[test]
fn those_that_are_killed_at_any_moment_leave_nothing() {
    let (schema, store) = world();
    let mut newest: Option<Token> = None;
    for round in 0..12 {
        let both = [start("turning", &schema, "r"), start("turning", &schema, "r")];
        for process in &both {
            process.wait_for("@turn", PATIENCE);
        }
        // A few steps further each time.
        let end = Instant::now() + Duration::from_micros(1700 * round);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        both.into_iter().for_each(kill);
        let next = common::claim("r");
        let grant = until_granted(&store, &next);
        assert!(Some(grant.token) > newest, "tokens rise");
        newest = Some(grant.token);
        leave(&store, &next, &grant);
    }
    wait_until("what the last two had asked for is over", PATIENCE, || {
        let queue = block_on(store.inspect(&common::name("r"))).unwrap();
        if queue.entries.is_empty() { Ok(()) } else { Err(format!("{queue:?}")) }
    });
}

/// While it makes the tables, among others: they are made whole, or not at all.
#[test]
fn one_that_is_killed_while_it_makes_the_tables_leaves_all_or_nothing() {
    for round in 0..8 {
        let schema = common::schema();
        let doomed = start("holding", &schema, "r");
        doomed.wait_for("@begins", PATIENCE);
        std::thread::sleep(Duration::from_millis(4 * round));
        kill(doomed);
        let config = common::config(common::server().port(), &schema);
        let store = block_on(PostgresStore::connect(config)).unwrap();
        until_granted(&store, &common::claim("r"));
    }
}
