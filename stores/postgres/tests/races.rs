//! Schedules that break what one would write by hand: each is shown to break that, and not this.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Admission, Claim, ClaimRef, ErrorKind, Mode, Place, Renewed, Store};
use leasehold_postgres::PostgresStore;
use leasehold_testkit::contest::{Wish, contender, judge, recorder};
use leasehold_testkit::server::postgres::Postgres;
use leasehold_testkit::server::wait_until;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

/// A session of somebody else's.
fn session(runtime: &Runtime) -> Client {
    session_at(runtime, common::server())
}

fn session_at(runtime: &Runtime, server: &Postgres) -> Client {
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(server.port()).user("postgres").dbname("postgres");
    runtime.block_on(async {
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    })
}

/// A world of its own: a schema with the tables in it, and a client of the store.
fn world() -> (Runtime, String, PostgresStore) {
    let (runtime, schema) = (common::runtime(), common::schema());
    let config = common::config(common::server().port(), &schema);
    let store = runtime.block_on(common::connect(&config));
    (runtime, schema, store)
}

/// Waits until so many sessions wait for a lock while they run a statement like this.
fn until_blocked(count: usize, like: &str) {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity
          WHERE wait_event_type = 'Lock' AND query LIKE '%{like}%' AND pid <> pg_backend_pid()"
    );
    wait_until("sessions wait for a lock", Duration::from_secs(30), || {
        let found = common::server().sql(&sql);
        if found.parse() == Ok(count) { Ok(()) } else { Err(format!("{found} do")) }
    });
}

fn step(schema: &str, call: &str) -> String {
    format!("SELECT {schema}.leasehold_step('{call}', true)::text")
}

fn enter_call(claim: &Claim) -> String {
    let mode = match claim.mode {
        Mode::Exclusive => r#""mode":"exclusive""#.to_owned(),
        Mode::Shared => r#""mode":"shared""#.to_owned(),
        Mode::Permits { count, limit } => {
            format!(r#""mode":"permits","count":{count},"limit":{limit}"#)
        }
    };
    format!(
        r#"{{"verb":"enter","name":"{}","claim":"{}","holder":"{}","label":"raw",{mode},"term":{},"life":"term","place":30000000,"home":1}}"#,
        claim.resource,
        claim.id,
        claim.holder.id,
        claim.term.as_micros()
    )
}

fn leave_call(claim: &Claim, unanswered: bool) -> String {
    let bar = if unanswered { r#","unanswered":true"# } else { "" };
    format!(
        r#"{{"verb":"leave","name":"{}","claim":"{}","term":30000000{bar}}}"#,
        claim.resource, claim.id
    )
}

/// Runs a statement in a session on a task of its own; its text when it is done.
fn begin(
    runtime: &Runtime,
    client: &Arc<Client>,
    sql: String,
) -> tokio::task::JoinHandle<Result<String, tokio_postgres::Error>> {
    let client = Arc::clone(client);
    runtime.spawn(async move {
        let rows = client.query_typed(&sql, &[]).await?;
        Ok(rows.first().map(|row| row.get(0)).unwrap_or_default())
    })
}

/// One permit of one, twice: the tempting single statement locks the row and counts the claims at
/// once, but counts those of the moment before it waited.
const TEMPTING: &str = "WITH locked AS (
    SELECT name FROM {schema}.leasehold_resource WHERE name = 'p' FOR UPDATE
  ), standing AS (
    SELECT coalesce(sum(count), 0) AS permits FROM {schema}.leasehold_claim WHERE resource = 'p'
  ), entered AS (
    INSERT INTO {schema}.leasehold_claim
           (resource, ord, sub, claim, holder, label, mode, count, slot_limit, stands, stands_count,
            entered, term, life, after_loss, place, home, ticket, until, token, broken)
    SELECT name, {ord}, 0, gen_random_uuid(), gen_random_uuid(), 'raw', 'permits', 1, 1, 'permits', 1,
           clock_timestamp(), 30000000, 'term', 0, 0, 1, {ord}, clock_timestamp() + '30 s', {ord},
           false
      FROM locked, standing WHERE permits + 1 <= 1
    RETURNING 1
  ) SELECT count(*)::text FROM entered";

#[test]
fn two_that_wait_for_a_row_are_not_both_admitted() {
    let (runtime, schema, store) = world();
    let one = |on| Claim { mode: Mode::Permits { count: 1, limit: 1 }, ..common::claim(on) };
    let first = one("p");
    runtime.block_on(async {
        store.enter(&first).await.unwrap();
        store.leave(&first.to_ref()).await.unwrap();
    });
    let holder = session(&runtime);
    let lock =
        format!("BEGIN; SELECT 1 FROM {schema}.leasehold_resource WHERE name = 'p' FOR UPDATE");
    let rivals: Vec<Arc<Client>> = (0..2).map(|_| Arc::new(session(&runtime))).collect();
    let admitted = |statements: Vec<String>, like: &str| -> Vec<String> {
        runtime.block_on(holder.batch_execute(&lock)).unwrap();
        let begun: Vec<_> =
            rivals.iter().zip(statements).map(|(rival, sql)| begin(&runtime, rival, sql)).collect();
        until_blocked(2, like);
        runtime.block_on(holder.batch_execute("COMMIT")).unwrap();
        begun.into_iter().map(|task| runtime.block_on(task).unwrap().unwrap()).collect()
    };

    let sql = |ord: &str| TEMPTING.replace("{schema}", &schema).replace("{ord}", ord);
    let planted = admitted(vec![sql("1"), sql("2")], "FROM locked, standing");
    assert_eq!(planted, ["1", "1"], "the tempting statement grants one permit twice");
    common::server().sql(&format!("DELETE FROM {schema}.leasehold_claim"));

    let ours = vec![step(&schema, &enter_call(&one("p"))), step(&schema, &enter_call(&one("p")))];
    let answers = admitted(ours, "leasehold_step");
    let granted = answers.iter().filter(|a| a.contains("\"granted\"")).count();
    let waiting = answers.iter().filter(|a| a.contains("\"waiting\"")).count();
    assert_eq!((granted, waiting), (1, 1), "{answers:?}");
}

/// The grant begins when the row is ours, not when the statement or the transaction began: with
/// now() it would be granted in the past, by the length of the wait.
#[test]
fn a_term_is_counted_from_after_the_wait_for_the_row() {
    let (runtime, schema, store) = world();
    let planted = common::schema();
    let sql = PostgresStore::schema_sql(&planted).replace("clock_timestamp()", "now()");
    common::server().sql(&sql);
    let claim = Claim { term: Duration::from_millis(500), ..common::claim("r") };
    let other = common::claim("r");
    runtime.block_on(async {
        store.enter(&other).await.unwrap();
        store.leave(&other.to_ref()).await.unwrap();
    });
    common::server().sql(&format!(
        "INSERT INTO {planted}.leasehold_resource SELECT * FROM {schema}.leasehold_resource"
    ));
    let holder = session(&runtime);
    let rival = Arc::new(session(&runtime));
    let granted_after_release = |schema: &str| -> bool {
        let lock =
            format!("BEGIN; SELECT 1 FROM {schema}.leasehold_resource WHERE name = 'r' FOR UPDATE");
        runtime.block_on(holder.batch_execute(&lock)).unwrap();
        let begun = begin(&runtime, &rival, step(schema, &enter_call(&claim)));
        until_blocked(1, "leasehold_step");
        // Longer than the whole term.
        runtime.block_on(holder.batch_execute("SELECT pg_sleep(0.7)")).unwrap();
        let released: std::time::SystemTime =
            runtime.block_on(holder.query_one("SELECT clock_timestamp()", &[])).unwrap().get(0);
        runtime.block_on(holder.batch_execute("COMMIT")).unwrap();
        let answer = runtime.block_on(begun).unwrap().unwrap();
        assert!(answer.contains("\"granted\""), "{answer}");
        let since = format!("SELECT h_since FROM {schema}.leasehold_resource WHERE name = 'r'");
        let since: std::time::SystemTime =
            runtime.block_on(holder.query_one(&since, &[])).unwrap().get(0);
        since >= released
    };
    assert!(!granted_after_release(&planted), "now() grants in the past");
    assert!(granted_after_release(&schema), "the wait was taken from the term");
}

/// A leave that comes while its enter waits for the row, or is not committed yet, finds it.
#[test]
fn a_leave_misses_no_enter_that_is_under_way() {
    let (runtime, schema, store) = world();
    let (a, b) = (Arc::new(session(&runtime)), Arc::new(session(&runtime)));
    // The row is there: both wait for it, the leave behind.
    let other = common::claim("r");
    runtime.block_on(store.enter(&other)).unwrap();
    runtime.block_on(store.leave(&other.to_ref())).unwrap();
    let holder = session(&runtime);
    let lock = format!("BEGIN; SELECT 1 FROM {schema}.leasehold_resource FOR UPDATE");
    runtime.block_on(holder.batch_execute(&lock)).unwrap();
    let claim = common::claim("r");
    let entering = begin(&runtime, &a, step(&schema, &enter_call(&claim)));
    until_blocked(1, "leasehold_step");
    let leaving = begin(&runtime, &b, step(&schema, &leave_call(&claim, true)));
    until_blocked(2, "leasehold_step");
    runtime.block_on(holder.batch_execute("COMMIT")).unwrap();
    runtime.block_on(entering).unwrap().unwrap();
    runtime.block_on(leaving).unwrap().unwrap();
    let queue = runtime.block_on(store.inspect(&claim.resource)).unwrap();
    assert!(queue.entries.is_empty(), "a ghost: {queue:?}");

    // There is no row: the enter has made it and not committed.
    let claim = common::claim("new");
    runtime.block_on(a.batch_execute("BEGIN")).unwrap();
    let entering = begin(&runtime, &a, step(&schema, &enter_call(&claim)));
    runtime.block_on(entering).unwrap().unwrap();
    let leaving = begin(&runtime, &b, step(&schema, &leave_call(&claim, true)));
    until_blocked(1, "leasehold_step");
    runtime.block_on(a.batch_execute("COMMIT")).unwrap();
    let left = runtime.block_on(leaving).unwrap().unwrap();
    assert!(left.contains("released"), "{left}");
    let queue = runtime.block_on(store.inspect(&claim.resource)).unwrap();
    assert!(queue.entries.is_empty(), "a ghost: {queue:?}");
}

/// A claim that is given up while its enter is between its snapshot and the row's lock is granted
/// nothing, though that snapshot does not have the bar.
#[test]
fn a_claim_barred_since_the_snapshot_is_not_taken() {
    let (runtime, schema, store) = world();
    let placed = |sql: &str| sql.replace("public.", &format!("{schema}."));
    // Somebody's lock holds the statement up after it has its snapshot.
    let held_up = placed(include_str!("../src/sql/take.sql"))
        .replace("FROM unnest(", "FROM (SELECT pg_advisory_xact_lock_shared(7)) AS gate, unnest(");
    let planted = held_up.replace(" AND r.xmin = a.seen", "");
    assert!(held_up.contains("gate") && planted != held_up);
    let gate = session(&runtime);
    let taken = |sql: &str, name: &str| -> usize {
        let other = common::claim(name);
        runtime.block_on(store.enter(&other)).unwrap();
        runtime.block_on(store.leave(&other.to_ref())).unwrap();
        runtime.block_on(gate.batch_execute("SELECT pg_advisory_lock(7)")).unwrap();
        let claim = common::claim(name);
        let (taker, sql) = (session(&runtime), sql.to_owned());
        let (on, id) = (vec![name.to_owned()], vec![claim.id.to_string()]);
        let taking = runtime.spawn(async move {
            let (words, terms) = (vec!["term".to_owned()], vec![30_000_000_i64]);
            let losses = vec![0_i64];
            taker.query(&sql, &[&on, &id, &id, &words, &terms, &words, &losses]).await
        });
        until_blocked(1, "Grants exclusive claims of names");
        let barred = ClaimRef { enter_unanswered: true, ..claim.to_ref() };
        runtime.block_on(store.leave(&barred)).unwrap();
        runtime.block_on(gate.batch_execute("SELECT pg_advisory_unlock(7)")).unwrap();
        runtime.block_on(taking).unwrap().unwrap().len()
    };
    assert_eq!(taken(&planted, "planted"), 1, "without the version it makes a ghost");
    assert_eq!(taken(&held_up, "ours"), 0, "a ghost");
}

/// What was prepared may be forgotten, as where a pooler makes its sessions new.
#[test]
fn a_session_that_forgets_its_statements_grants_and_releases_all_the_same() {
    let (runtime, schema, store) = world();
    let cycle = || {
        let (claim, next) = (common::claim("r"), common::claim("r"));
        let granted = runtime.block_on(store.enter(&claim)).unwrap();
        assert!(matches!(granted, Admission::Granted(_)), "{granted:?}");
        runtime.block_on(store.leave(&claim.to_ref())).unwrap();
        let granted = runtime.block_on(store.enter(&next)).unwrap();
        assert!(matches!(granted, Admission::Granted(_)), "{granted:?}");
        runtime.block_on(store.leave(&next.to_ref())).unwrap();
    };
    cycle();
    common::server().sql(&format!(
        "CREATE FUNCTION {schema}.forget() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN DEALLOCATE ALL; RETURN NULL; END';
         CREATE TRIGGER forget AFTER UPDATE ON {schema}.leasehold_resource
           EXECUTE FUNCTION {schema}.forget()"
    ));
    cycle();
    cycle();
}

/// A user's transaction that holds one claim's row delays no other renewal, enter or leave.
#[test]
fn a_row_that_a_transaction_holds_delays_no_other() {
    let (runtime, schema, store) = world();
    let claims: Vec<Claim> = (0..50).map(|n| common::claim(&format!("r{n:02}"))).collect();
    runtime.block_on(async {
        for claim in &claims {
            let granted = store.enter(claim).await.unwrap();
            assert!(matches!(granted, Admission::Granted(_)), "{granted:?}");
        }
    });
    let holder = session(&runtime);
    let lock =
        format!("BEGIN; SELECT 1 FROM {schema}.leasehold_resource WHERE name = 'r07' FOR SHARE");
    runtime.block_on(holder.batch_execute(&lock)).unwrap();
    let named: Vec<_> = claims.iter().map(Claim::to_ref).collect();
    let answers = runtime.block_on(store.renew(&named));
    for (claim, answer) in claims.iter().zip(&answers) {
        match answer {
            Renewed::Granted(_) => assert_ne!(claim.resource.as_str(), "r07"),
            Renewed::Unknown(error) => {
                assert_eq!(claim.resource.as_str(), "r07");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    // Others go on, while this one is told what is in its way.
    runtime.block_on(async {
        let (sick, well) = (named[7].clone(), named[8].clone());
        let (sick, well) = tokio::join!(store.leave(&sick), store.leave(&well));
        assert!(well.is_ok(), "{well:?}");
        let error = sick.unwrap_err();
        assert!(error.to_string().contains("locked by another transaction"), "{error}");
        let next = common::claim("r08");
        assert!(matches!(store.enter(&next).await, Ok(Admission::Granted(_))));
        holder.batch_execute("COMMIT").await.unwrap();
        let alone = store.renew(&named[7..8]).await.pop();
        assert!(matches!(alone, Some(Renewed::Granted(_))), "{alone:?}");
    });
}

/// A try that fails writes nothing.
#[test]
fn a_failed_try_writes_no_wal() {
    let server = Postgres::with(leasehold_testkit::server::postgres::Options {
        // Nothing else writes.
        settings: vec!["autovacuum = off".into(), "checkpoint_timeout = '1h'".into()],
        ..Default::default()
    });
    let runtime = common::runtime();
    let config = common::config(server.port(), "public");
    let store = runtime.block_on(common::connect(&config));
    let held = common::claim("r");
    runtime.block_on(store.enter(&held)).unwrap();
    let shared = Claim { mode: Mode::Shared, ..common::claim("s") };
    runtime.block_on(store.enter(&shared)).unwrap();
    let two = Claim { mode: Mode::Permits { count: 2, limit: 2 }, ..common::claim("p") };
    runtime.block_on(store.enter(&two)).unwrap();
    server.sql("CHECKPOINT");
    // The background writer notes what runs now and then.
    let written = |tries: usize| -> u64 {
        let before = server.sql("SELECT pg_current_wal_insert_lsn()");
        for n in 0..tries {
            let on = ["r", "s", "p"][n % 3];
            let mode = if on == "p" { two.mode } else { Mode::Exclusive };
            let attempt = Claim { place: Place::No, mode, ..common::claim(on) };
            let answer = runtime.block_on(store.enter(&attempt)).unwrap();
            assert!(matches!(answer, Admission::Busy(_)), "{answer:?}");
        }
        let sql = format!("SELECT (pg_current_wal_insert_lsn() - '{before}')::bigint");
        server.sql(&sql).parse().unwrap()
    };
    // Hint bits of the first look.
    written(3);
    let least = (0..5).map(|_| written(300)).min();
    assert_eq!(least, Some(0));
}

/// Clients of several processes' worth, many names, all modes: no deadlock, and the history holds.
#[test]
fn a_storm_meets_no_deadlock() {
    let server = Postgres::start();
    let runtime = common::runtime();
    let config = common::config(server.port(), "public");
    let recorder = recorder();
    let names: Vec<String> = (0..5).map(|n| format!("r{n}")).collect();
    let mut threads = Vec::new();
    for client in 0..8 {
        let store: Arc<dyn Store> = Arc::new(runtime.block_on(common::connect(&config)));
        for _ in 0..2 {
            let wish = Wish {
                claim: common::claim,
                names: names.clone(),
                modes: vec![Mode::Exclusive, Mode::Shared],
                term: Duration::from_secs(20),
                hold: Duration::ZERO,
                rounds: 25,
            };
            threads.push(contender(&recorder, client, Arc::clone(&store), wish));
        }
    }
    // Many renewals of many names in every order beside them.
    let held: Vec<Claim> = (0..40).map(|n| common::claim(&format!("held{n}"))).collect();
    let keeper = runtime.block_on(common::connect(&config));
    runtime.block_on(async {
        for claim in &held {
            keeper.enter(claim).await.unwrap();
        }
        let mut named: Vec<_> = held.iter().map(Claim::to_ref).collect();
        for _ in 0..20 {
            named.rotate_left(7);
            let answers = keeper.renew(&named).await;
            let alive = |a: &Renewed| matches!(a, Renewed::Granted(_));
            assert!(answers.iter().all(alive), "{answers:?}");
        }
    });
    for thread in threads {
        thread.join().unwrap();
    }
    judge(&recorder);
    let deadlocks = "SELECT pg_stat_force_next_flush(), sum(deadlocks) FROM pg_stat_database";
    assert_eq!(server.sql(deadlocks), "|0");
}
