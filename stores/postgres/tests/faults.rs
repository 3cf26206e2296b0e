//! What is lost, and what is not, when connections, servers, poolers and clocks are hurt.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold_core::{
    Admission, Claim, ClaimRef, Cursor, Ended, Grant, Hint, Mode, Place, Renewed, Store,
};
use leasehold_postgres::{Listen, PostgresConfig, PostgresStore};
use leasehold_testkit::contest::{PATIENCE, Wish, contender, judge, recorder};
use leasehold_testkit::proxy::{Proxy, Verdict, Way};
use leasehold_testkit::server::pgbouncer::PgBouncer;
use leasehold_testkit::server::postgres::{Options, Postgres};
use leasehold_testkit::server::{FakeTime, wait_until};
use leasehold_testkit::{Recorder, block_on};

fn open(config: &PostgresConfig) -> Arc<PostgresStore> {
    Arc::new(block_on(PostgresStore::connect(config.clone())).unwrap())
}

fn at(port: u16) -> PostgresConfig {
    common::config(port, "public")
}

fn granted(store: &PostgresStore, claim: &Claim) -> Grant {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

fn named(claim: &Claim, grant: &Grant) -> ClaimRef {
    ClaimRef { token: Some(grant.token), ..claim.to_ref() }
}

fn renew(store: &PostgresStore, claim: &ClaimRef) -> Renewed {
    block_on(store.renew(std::slice::from_ref(claim))).pop().unwrap()
}

/// Renews until there is a clear answer.
fn renewed(store: &PostgresStore, claim: &ClaimRef) -> Renewed {
    let end = Instant::now() + PATIENCE;
    loop {
        match renew(store, claim) {
            Renewed::Unknown(error) => {
                assert!(error.kind().is_transient(), "{error:?}");
                assert!(Instant::now() < end, "no clear answer: {error}");
                std::thread::sleep(Duration::from_millis(20));
            }
            clear => return clear,
        }
    }
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

fn is_busy(store: &PostgresStore, name: &str) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        let attempt = Claim { place: Place::No, ..common::claim(name) };
        match block_on(store.enter(&attempt)) {
            Ok(answer) => return matches!(answer, Admission::Busy(_)),
            Err(error) => assert!(error.kind().is_transient(), "{error:?}"),
        }
        assert!(Instant::now() < end, "no clear answer");
    }
}

fn disturbances(store: &PostgresStore) -> Cursor {
    block_on(futures_lite::future::poll_once(store.disturbed(Cursor(0)))).unwrap_or_default()
}

/// Contenders over these stores.
fn contest(
    recorder: &Recorder,
    stores: &[Arc<PostgresStore>],
    rounds: usize,
) -> Vec<JoinHandle<()>> {
    let wish = Wish {
        claim: common::claim,
        names: vec!["hurt-a".into(), "hurt-b".into()],
        modes: vec![Mode::Exclusive, Mode::Exclusive, Mode::Shared],
        term: Duration::from_secs(20),
        hold: Duration::ZERO,
        rounds,
    };
    let start = |(n, store): (usize, &Arc<PostgresStore>)| {
        let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
        contender(recorder, u32::try_from(n).unwrap(), store, wish.clone())
    };
    stores.iter().enumerate().map(start).collect()
}

/// Hurts again and again until all contenders are done, letting them get on in between; how often.
fn meanwhile(recorder: &Recorder, threads: Vec<JoinHandle<()>>, mut hurt: impl FnMut()) -> u32 {
    let mut times = 0;
    let done = |threads: &[JoinHandle<()>]| threads.iter().all(JoinHandle::is_finished);
    while !done(&threads) {
        hurt();
        times += 1;
        let before = recorder.history().events.len();
        while recorder.history().events.len() < before + 60 && !done(&threads) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    times
}

fn nothing_is_left(store: &PostgresStore) {
    for name in ["hurt-a", "hurt-b"] {
        let queue = block_on(store.inspect(&common::name(name))).unwrap();
        assert!(queue.entries.is_empty(), "{queue:?}");
    }
}

#[test]
fn terminated_backends_lose_and_double_nothing() {
    let server = Postgres::start();
    let recorder = recorder();
    let stores: Vec<_> = (0..3).map(|_| open(&at(server.port()))).collect();
    let threads = contest(&recorder, &stores, 60);
    let terminated = AtomicU64::new(0);
    meanwhile(&recorder, threads, || {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                    WHERE application_name = 'leasehold'";
        terminated.fetch_add(server.sql(sql).parse().unwrap(), Ordering::SeqCst);
    });
    assert!(terminated.into_inner() > 3, "none was terminated");
    judge(&recorder);
    nothing_is_left(&stores[0]);
    assert!(disturbances(&stores[0]) > Cursor(0), "nobody was told of the reconnects");
}

#[test]
fn a_restart_and_a_crash_keep_every_grant_whatever_the_default() {
    for default in ["on", "off"] {
        let server = Postgres::with(Options {
            settings: vec![
                format!("synchronous_commit = {default}"),
                // What is not waited for stays unwritten for long.
                "wal_writer_delay = '10s'".into(),
            ],
            ..Options::default()
        });
        let store = open(&at(server.port()));
        let long = |name: String| Claim { term: Duration::from_secs(120), ..common::claim(&name) };
        let claims: Vec<Claim> = (0..10).map(|n| long(format!("kept-{n}"))).collect();
        let grants: Vec<Grant> = claims.iter().map(|c| granted(&store, c)).collect();
        let refs: Vec<ClaimRef> = claims.iter().zip(&grants).map(|(c, g)| named(c, g)).collect();
        server.restart();
        assert!(matches!(renewed(&store, &refs[0]), Renewed::Alive { .. }));
        // Granted, handed over and renewed last of all.
        let (last, next) = (long("last".into()), long("last".into()));
        let last_grant = granted(&store, &last);
        assert!(matches!(block_on(store.enter(&next)).unwrap(), Admission::Waiting(_)));
        block_on(store.leave(&named(&last, &last_grant))).unwrap();
        server.server().kill9();
        server.server().start_again();
        for claim in &refs {
            assert!(matches!(renewed(&store, claim), Renewed::Alive { .. }), "{default}");
        }
        // Its first term is short: it may be over. Had the hand-over been forgotten, it would wait.
        match renewed(&store, &next.to_ref()) {
            Renewed::Granted(grant) => assert!(grant.token > last_grant.token),
            Renewed::Gone(Ended::Expired) => {}
            other => panic!("{default}: {other:?}"),
        }
        let renewed_to = Claim { term: Duration::from_secs(500), ..claims[1].clone() };
        assert!(matches!(renew(&store, &named(&renewed_to, &grants[1])), Renewed::Alive { .. }));
        server.server().kill9();
        server.server().start_again();
        wait_until("it answers", PATIENCE, || {
            let queue = block_on(store.inspect(&renewed_to.resource)).map_err(|e| e.to_string())?;
            match &queue.entries[0].state {
                leasehold_core::QueueState::Granted { left, .. } => {
                    assert!(*left > Duration::from_secs(400), "a renewal was forgotten: {left:?}");
                    Ok(())
                }
                other => panic!("{other:?}"),
            }
        });
    }
}

/// A primary, a standby that follows it through a proxy, and a store that knows both.
fn pair(settings: &[&str]) -> (Postgres, Postgres, Proxy, Arc<PostgresStore>) {
    let settings = settings.iter().map(|s| (*s).to_owned()).collect();
    let primary = Postgres::with(Options { settings, ..Options::default() });
    let between = Proxy::start(primary.addr());
    let standby = Postgres::with(Options {
        settings: vec!["synchronous_standby_names = ''".into()],
        standby_of: Some((between.port(), "standby".into())),
        ..Options::default()
    });
    wait_until("the standby follows", PATIENCE, || {
        let state = primary.sql("SELECT string_agg(state, ',') FROM pg_stat_replication");
        if state == "streaming" { Ok(()) } else { Err(state) }
    });
    let mut config = at(standby.port());
    let host = |port| format!("127.0.0.1:{port}");
    let url =
        format!("postgres://postgres@{},{}/postgres", host(standby.port()), host(primary.port()));
    config.hosts = PostgresConfig::from_url(&url).unwrap().hosts;
    let store = open(&config);
    (primary, standby, between, store)
}

#[test]
fn a_synchronous_standby_that_takes_over_has_every_grant() {
    let (primary, standby, _between, store) = pair(&["synchronous_standby_names = standby"]);
    let claims: Vec<Claim> = (0..5)
        .map(|n| Claim { term: Duration::from_secs(120), ..common::claim(&format!("kept-{n}")) })
        .collect();
    let grants: Vec<Grant> = claims.iter().map(|c| granted(&store, c)).collect();
    primary.server().kill9();
    standby.promote();
    for (claim, grant) in claims.iter().zip(&grants) {
        let answer = renewed(&store, &named(claim, grant));
        assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
        assert!(is_busy(&store, claim.resource.as_str()));
        block_on(store.leave(&named(claim, grant))).unwrap();
        let next = granted(&store, &common::claim(claim.resource.as_str()));
        assert!(next.token > grant.token);
    }
    assert!(disturbances(&store) > Cursor(0));
}

#[test]
fn what_an_asynchronous_standby_has_not_got_is_lost_and_told_so() {
    let (primary, standby, between, store) = pair(&[]);
    let early = common::claim("early");
    let early_grant = granted(&store, &early);
    let sent = "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), flush_lsn) <= 0
                  FROM pg_stat_replication";
    wait_until("the standby has it", PATIENCE, || {
        if primary.sql(sent) == "t" { Ok(()) } else { Err("not yet".into()) }
    });
    // It hears no more, and the primary does not wait for it.
    between.pause();
    let late = common::claim("late");
    let late_grant = granted(&store, &late);
    primary.server().kill9();
    between.sever();
    standby.promote();
    let kept = renewed(&store, &named(&early, &early_grant));
    assert!(matches!(kept, Renewed::Alive { .. }), "{kept:?}");
    let lost = renewed(&store, &named(&late, &late_grant));
    assert!(matches!(lost, Renewed::Gone(Ended::Failover)), "{lost:?}");
    // The floor of the clock keeps tokens rising over it.
    let next = granted(&store, &common::claim("late"));
    assert!(next.token > late_grant.token);
}

#[test]
fn half_open_connections_lose_and_double_nothing() {
    let server = Postgres::start();
    let proxy = Proxy::start(server.addr());
    let recorder = recorder();
    let mut stores: Vec<_> = (0..2).map(|_| open(&at(proxy.port()))).collect();
    stores.push(open(&at(server.port())));
    let threads = contest(&recorder, &stores, 40);
    let mut way = 0;
    meanwhile(&recorder, threads, || {
        way += 1;
        // Nothing arrives at one side, for longer than an answer is waited for now and then.
        proxy.pause_to_client(way % 2 == 0);
        proxy.pause_to_server(way % 2 == 1);
        let silence = if way == 3 { 6000 } else { 200 };
        std::thread::sleep(Duration::from_millis(silence));
        proxy.resume();
        if way % 3 == 0 {
            proxy.sever();
        }
    });
    judge(&recorder);
    nothing_is_left(&stores[2]);
}

#[test]
fn lost_replies_make_no_second_claim_and_no_ghost() {
    let server = Postgres::start();
    let proxy = Proxy::start(server.addr());
    let recorder = recorder();
    let stores: Vec<_> = (0..3).map(|_| open(&at(proxy.port()))).collect();
    let threads = contest(&recorder, &stores, 150);
    let hurts = meanwhile(&recorder, threads, || {
        proxy.drop_replies(1);
    });
    assert!(hurts > 3);
    judge(&recorder);
    nothing_is_left(&open(&at(server.port())));
}

#[test]
fn a_pooler_that_restarts_loses_and_doubles_nothing() {
    let server = Postgres::start();
    let pooler = PgBouncer::start(server.port(), 5);
    let recorder = recorder();
    let mut beside = at(pooler.port());
    let url = format!("postgres://h/x?listen=127.0.0.1:{}", server.port());
    beside.listen = PostgresConfig::from_url(&url).unwrap().listen;
    let stores = [open(&at(pooler.port())), open(&at(pooler.port())), open(&beside)];
    let told = |n: usize| stores[n].profile().limits.join(" ").contains("?listen=");
    assert!(told(0) && !told(2), "the profile says how waiters are told");
    let threads = contest(&recorder, &stores, 60);
    meanwhile(&recorder, threads, || {
        pooler.server().kill9();
        pooler.server().start_again();
    });
    judge(&recorder);
    nothing_is_left(&stores[0]);
}

/// A hand-over is told at once by the direct connection beside a pooler.
#[test]
fn a_direct_connection_beside_a_pooler_is_told_of_a_hand_over() {
    let server = common::server();
    let pooler = PgBouncer::start(server.port(), 3);
    let mut config = common::config(pooler.port(), &common::schema());
    let url = format!("postgres://h/x?listen=127.0.0.1:{}", server.port());
    config.listen = PostgresConfig::from_url(&url).unwrap().listen;
    let (a, b) = (open(&config), open(&config));
    let (held, waiter) = (common::claim("r"), common::claim("r"));
    let grant = granted(&a, &held);
    assert!(matches!(block_on(b.enter(&waiter)).unwrap(), Admission::Waiting(_)));
    // Once it listens everybody looks.
    let heard = |since| {
        let long = Duration::from_secs(60);
        block_on(b.changed(&waiter.resource, Some(waiter.id), since, long)).unwrap()
    };
    let Hint::Moved(since) = heard(Cursor::default()) else { panic!("nothing was handed over") };
    block_on(a.leave(&named(&held, &grant))).unwrap();
    let hint = heard(since);
    assert!(matches!(&hint, Hint::Granted(p) if p.grant.claim == waiter.id), "{hint:?}");
}

/// A server that is silent is noticed, and another connection is tried.
#[test]
fn a_silent_connection_is_given_up() {
    let server = common::server();
    let proxy = Proxy::start(server.addr());
    let mut config = common::config(proxy.port(), &common::schema());
    config.listen = Listen::Never;
    let store = open(&config);
    let claim = common::claim("r");
    let grant = granted(&store, &claim);
    // These connections, and no later ones, say nothing more.
    let last = proxy.accepted();
    proxy.on_chunk(move |way, connection, _| {
        if way == Way::ToClient && connection < last { Verdict::Swallow } else { Verdict::Pass }
    });
    assert!(matches!(renewed(&store, &named(&claim, &grant)), Renewed::Alive { .. }));
    assert!(is_busy(&store, "r"));
}

#[test]
fn a_stepped_clock_is_told_and_tokens_rise_all_the_same() {
    let time = Arc::new(FakeTime::new());
    let server = Postgres::with(Options { time: Some(Arc::clone(&time)), ..Options::default() });
    let store = open(&at(server.port()));
    let held = common::claim("r");
    let grant = granted(&store, &held);
    let before = disturbances(&store);
    time.step(3600);
    // The server has ended it an hour early: that is told as what it is.
    let ended = renewed(&store, &named(&held, &grant));
    assert!(matches!(ended, Renewed::Gone(Ended::Clock)), "{ended:?}");
    assert!(disturbances(&store) > before, "nobody is told to look");
    let second = common::claim("r");
    let ahead = granted(&store, &second);
    assert!(ahead.token > grant.token);
    time.step(0);
    // Set back, it lasts longer, and the counter does not follow the clock.
    assert!(matches!(renewed(&store, &named(&second, &ahead)), Renewed::Alive { .. }));
    block_on(store.leave(&named(&second, &ahead))).unwrap();
    let behind = granted(&store, &common::claim("r"));
    assert!(behind.token > ahead.token);
}

/// Set back by an hour, the server keeps what is held for that much longer, and hands over all the
/// same; nobody who renews notices.
#[test]
fn a_clock_that_is_set_back_keeps_and_doubles_nothing_and_hands_over() {
    let time = Arc::new(FakeTime::new());
    let server = Postgres::with(Options { time: Some(Arc::clone(&time)), ..Options::default() });
    let (store, other) = (open(&at(server.port())), open(&at(server.port())));
    let (held, waiter) = (common::claim("r"), common::claim("r"));
    let grant = granted(&store, &held);
    assert!(matches!(block_on(other.enter(&waiter)).unwrap(), Admission::Waiting(_)));
    time.step(-3600);
    assert!(matches!(renewed(&store, &named(&held, &grant)), Renewed::Alive { .. }));
    assert!(is_busy(&other, "r"));
    block_on(store.leave(&named(&held, &grant))).unwrap();
    let next = until_granted(&other, &waiter);
    assert!(next.token > grant.token, "though the clock went back");
    granted(&store, &common::claim("fresh"));
}

/// Somebody's old snapshot lets rows pile up; all goes on, and the room is used again afterwards.
#[test]
fn an_old_snapshot_costs_room_and_nothing_else() {
    let server = Postgres::start();
    let store = open(&at(server.port()));
    let cycles = |n: usize| {
        let mut newest = None;
        for _ in 0..n {
            let claim = common::claim("r");
            let token = Some(granted(&store, &claim).token);
            assert!(token > newest);
            newest = token;
            block_on(store.leave(&claim.to_ref())).unwrap();
        }
    };
    let size =
        || -> u64 { server.sql("SELECT pg_relation_size('leasehold_resource')").parse().unwrap() };
    cycles(200);
    let small = size();
    let mut old = tokio_postgres::Config::new();
    old.host("127.0.0.1").port(server.port()).user("postgres").dbname("postgres");
    let runtime = common::runtime();
    let old = runtime.block_on(async {
        let (client, connection) = old.connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM leasehold_resource";
        client.batch_execute(snapshot).await.unwrap();
        client
    });
    cycles(500);
    let piled = size();
    assert!(piled > small, "the snapshot keeps rows");
    runtime.block_on(old.batch_execute("COMMIT")).unwrap();
    server.sql("VACUUM leasehold_resource");
    cycles(500);
    assert!(size() <= piled, "the room is not used again");
}

/// Whoever waited when a client went without a word gets in when its term or place is over.
#[test]
fn clients_that_vanish_in_any_state_cost_a_term_at_most() {
    let server = common::server();
    let config = common::config(server.port(), &common::schema());
    let survivor = open(&config);
    let short = Duration::from_millis(700);
    for state in ["holding", "waiting", "entering", "leaving", "handed over"] {
        let proxy = Proxy::start(server.addr());
        let mut behind = config.clone();
        behind.hosts[0].port = Some(proxy.port());
        behind.listen = Listen::Never;
        let doomed = open(&behind);
        let place = Place::Term(short);
        let claim = Claim { term: short, place, ..common::claim(state) };
        let first = common::claim(state);
        match state {
            "holding" => drop(granted(&doomed, &claim)),
            "waiting" | "handed over" => {
                let grant = granted(&survivor, &first);
                let waiting = block_on(doomed.enter(&claim)).unwrap();
                assert!(matches!(waiting, Admission::Waiting(_)));
                if state == "handed over" {
                    block_on(survivor.leave(&named(&first, &grant))).unwrap();
                }
            }
            _ => {
                if state == "leaving" {
                    granted(&doomed, &claim);
                }
                // Its last words arrive, and their answer does not.
                proxy.on_chunk(|way, _, _| match way {
                    Way::ToClient => Verdict::Swallow,
                    Way::ToServer => Verdict::Pass,
                });
                let last = async {
                    if state == "entering" {
                        drop(doomed.enter(&claim).await);
                    } else {
                        drop(doomed.leave(&claim.to_ref()).await);
                    }
                };
                let before = proxy.bytes_to_server();
                let mut last = std::pin::pin!(last);
                assert!(block_on(futures_lite::future::poll_once(&mut last)).is_none());
                wait_until("the words are sent", PATIENCE, || {
                    if proxy.bytes_to_server() > before { Ok(()) } else { Err("no".into()) }
                });
            }
        }
        drop(proxy);
        drop(doomed);
        if state == "waiting" {
            block_on(survivor.leave(&first.to_ref())).unwrap();
        }
        until_granted(&survivor, &common::claim(state));
    }
}
