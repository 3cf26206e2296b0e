//! What is lost, and what is not, when connections, servers and clients are hurt.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::claim;
use futures_lite::future::block_on;
use leasehold_core::{Admission, Claim, ClaimRef, Cursor, Grant, Mode, Place, Renewed, Store};
use leasehold_mysql::{MysqlConfig, MysqlStore};
use leasehold_testkit::contest::{PATIENCE, Wish, contender, judge, recorder};
use leasehold_testkit::proxy::{Proxy, Verdict, Way};
use leasehold_testkit::server::mariadb::{MariaDb, Options};

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

/// Enters again and again until granted.
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

/// It has been told by now, or is soon.
fn disturbed(store: &MysqlStore, since: Cursor) -> Cursor {
    let end = Instant::now() + PATIENCE;
    loop {
        let told = futures_lite::future::poll_once(store.disturbed(since));
        if let Some(cursor) = block_on(told) {
            return cursor;
        }
        assert!(Instant::now() < end, "no disturbance is told");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A try, that is refused.
fn is_busy(store: &MysqlStore, name: &str) -> bool {
    let attempt = Claim { place: Place::No, ..claim(name) };
    matches!(block_on(store.enter(&attempt)).unwrap(), Admission::Busy(_))
}

fn modes() -> Vec<Mode> {
    vec![Mode::Exclusive, Mode::Exclusive, Mode::Shared]
}

#[test]
fn killed_connections_lose_and_double_nothing() {
    let server = common::server();
    let recorder = recorder();
    let wish = Wish {
        claim: common::claim,
        names: vec!["kill-a".into(), "kill-b".into()],
        modes: modes(),
        term: Duration::from_secs(20),
        hold: Duration::ZERO,
        rounds: 60,
    };
    let stores: Vec<Arc<MysqlStore>> = (0..3).map(|_| open(server.port())).collect();
    let threads: Vec<_> = stores
        .iter()
        .enumerate()
        .map(|(n, store)| {
            let store: Arc<dyn Store> = Arc::clone(store) as Arc<dyn Store>;
            contender(&recorder, u32::try_from(n).unwrap(), store, wish.clone())
        })
        .collect();
    let mut raw = common::Raw::new(server.port());
    let mut killed = 0;
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let ids = raw.sql(
            "SELECT id FROM information_schema.processlist \
             WHERE db = 'leasehold' AND id <> CONNECTION_ID()",
        );
        for id in ids {
            // It may have ended by itself.
            killed += usize::from(server.try_sql("mysql", &format!("KILL {}", id[0])).is_ok());
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(killed > 3, "only {killed} connections were killed");
    judge(&recorder);
    for name in wish.names {
        let queue = block_on(stores[0].inspect(&common::name(&name))).unwrap();
        assert!(queue.entries.is_empty(), "{queue:?}");
    }
}

#[test]
fn a_restart_and_a_crash_keep_every_grant() {
    for flush in ["1", "2"] {
        let args = vec![format!("--innodb-flush-log-at-trx-commit={flush}")];
        let server = MariaDb::with(Options { args, ..Options::default() });
        server.sql("mysql", "CREATE DATABASE leasehold");
        let store = open(server.port());
        let limits = store.profile().limits.join(" ");
        assert_eq!(limits.contains("does not sync"), flush == "2", "{limits}");
        let claims: Vec<Claim> = (0..20)
            .map(|n| Claim { term: Duration::from_secs(120), ..claim(&format!("kept-{n}")) })
            .collect();
        let mut grants: Vec<Grant> = claims.iter().map(|c| granted(&store, c)).collect();
        let first = named(&claims[0], &grants[0]);
        assert!(matches!(block_on(common::renew(&*store, &first)), Renewed::Alive { .. }));
        for crash in [false, true] {
            let before = block_on(futures_lite::future::poll_once(store.disturbed(Cursor(0))));
            let before = before.unwrap_or_default();
            if crash {
                // What is granted last is kept, too.
                let last = Claim { term: Duration::from_secs(120), ..claim("last") };
                grants.push(granted(&store, &last));
                server.server().kill9();
                server.server().start_again();
                assert!(is_busy(&store, "last"));
            } else {
                server.server().restart();
            }
            let refs: Vec<ClaimRef> =
                claims.iter().zip(&grants).map(|(c, g)| named(c, g)).collect();
            let end = Instant::now() + PATIENCE;
            loop {
                let answers = block_on(store.renew(&refs));
                if answers.iter().all(|a| matches!(a, Renewed::Alive { .. })) {
                    break;
                }
                let lost = answers
                    .iter()
                    .find(|a| !matches!(a, Renewed::Alive { .. } | Renewed::Unknown(_)));
                assert!(lost.is_none() && Instant::now() < end, "{lost:?}");
            }
            disturbed(&store, before);
            assert!(claims.iter().all(|c| is_busy(&store, c.resource.as_str())));
        }
        for claim in &claims {
            block_on(store.leave(&claim.to_ref())).unwrap();
            let next = granted(&store, &self::claim(claim.resource.as_str()));
            assert!(grants.iter().all(|g| g.claim != claim.id || g.token < next.token));
        }
    }
}

#[test]
fn a_lock_kept_by_a_user_delays_no_other_claim() {
    let port = common::server().port();
    let store = open(port);
    let claims: Vec<Claim> = (0..50).map(|n| claim(&format!("locked-{n}"))).collect();
    let refs: Vec<ClaimRef> = claims.iter().map(|c| named(c, &granted(&store, c))).collect();
    let mut raw = common::Raw::new(port);
    raw.lock("locked-17");
    // All of this happens while the row stays locked.
    let answers = block_on(store.renew(&refs));
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Renewed::Alive { .. } if n != 17 => {}
            Renewed::Unknown(error) if n == 17 => assert!(error.kind().is_transient()),
            other => panic!("{n}: {other:?}"),
        }
    }
    let waits = {
        let (store, claim) = (Arc::clone(&store), claim("locked-17"));
        std::thread::spawn(move || block_on(store.enter(&claim)))
    };
    for n in (0..50).filter(|n| *n != 17) {
        block_on(store.leave(&refs[n])).unwrap();
        granted(&store, &claim(&format!("locked-{n}")));
    }
    let waited = waits.join().unwrap().unwrap_err();
    assert!(waited.to_string().contains("locked by another transaction"), "{waited}");
    raw.sql("ROLLBACK");
    assert!(matches!(block_on(common::renew(&*store, &refs[17])), Renewed::Alive { .. }));
}

#[test]
fn a_grant_that_waited_for_a_lock_has_its_whole_term() {
    let port = common::server().port();
    let store = open(port);
    let first = claim("whole-term");
    let grant = granted(&store, &first);
    block_on(store.leave(&named(&first, &grant))).unwrap();
    let mut raw = common::Raw::new(port);
    raw.lock("whole-term");
    let term = Duration::from_secs(5);
    let second = Claim { term, ..claim("whole-term") };
    let waits = {
        let (store, second) = (Arc::clone(&store), second.clone());
        std::thread::spawn(move || block_on(store.enter(&second)).unwrap())
    };
    // By the claim in the statement that waits: of a long one only the beginning is shown.
    let waiting = format!(
        "SELECT 1 FROM information_schema.innodb_trx \
         WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{:032X}%'",
        second.id.bits()
    );
    let end = Instant::now() + PATIENCE;
    while raw.sql(&waiting).is_empty() {
        assert!(Instant::now() < end && !waits.is_finished(), "it does not wait for the lock");
        // The server looks at its transactions only when it was not asked for a tenth of a second.
        std::thread::sleep(Duration::from_millis(120));
    }
    let since = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    let waited = since.elapsed();
    raw.sql("ROLLBACK");
    assert!(matches!(waits.join().unwrap(), Admission::Granted(_)));
    let sql = "SELECT h_until - h_since, h_until - \
        CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED) FROM leasehold_resource \
        WHERE name = 'whole-term'";
    let left: u64 = raw.sql(sql)[0][1].parse().unwrap();
    assert!(Duration::from_micros(left) > term - waited, "only {left} us are left");
}

#[test]
fn a_half_open_connection_is_given_up() {
    let proxy = Proxy::start(common::server().addr());
    let (store, other) = (open(proxy.port()), open(common::server().port()));
    let held = Claim { term: Duration::from_secs(60), ..claim("half-open") };
    let reference = named(&held, &granted(&store, &held));
    assert!(matches!(block_on(common::renew(&*store, &reference)), Renewed::Alive { .. }));
    proxy.pause_to_client(true);
    let answer = block_on(common::renew(&*store, &reference));
    let Renewed::Unknown(error) = answer else { panic!("{answer:?}") };
    assert!(error.kind().is_transient(), "{error}");
    assert!(is_busy(&other, "half-open"));
    proxy.pause_to_client(false);
    let end = Instant::now() + PATIENCE;
    while !matches!(block_on(common::renew(&*store, &reference)), Renewed::Alive { .. }) {
        assert!(Instant::now() < end, "it is not renewed again");
    }
}

/// Stops a client at one of the packets that it sends for contended enters and their leaves.
fn stop_at(verdict: Verdict, packet: usize) {
    let name = format!("state-{verdict:?}-{packet}");
    let proxy = Proxy::start(common::server().addr());
    let (other, victim) = (open(common::server().port()), open(proxy.port()));
    let seen = AtomicUsize::new(0);
    proxy.on_chunk(move |way, _, _| {
        let stops = way == Way::ToServer && seen.fetch_add(1, Ordering::SeqCst) >= packet;
        if stops { verdict } else { Verdict::Pass }
    });
    let term = Duration::from_secs(2);
    let place = Place::Term(term);
    let claim_as = |mode| Claim { mode, term, place, ..claim(&name) };
    let claims = [Mode::Shared, Mode::Shared, Mode::Exclusive].map(claim_as);
    let work = std::thread::spawn(move || {
        // What it is answered, if anything, is its own affair.
        for claim in &claims {
            let _ = block_on(victim.enter(claim));
        }
        for claim in &claims {
            let _ = block_on(victim.leave(&claim.to_ref()));
        }
    });
    // Whatever it did and did not, others get in, after its term at the latest.
    let next = claim(&name);
    until_granted(&other, &next);
    // It may be stopped with the row's lock even now, until the server takes that away.
    let end = Instant::now() + PATIENCE;
    while let Err(error) = block_on(other.leave(&next.to_ref())) {
        assert!(error.kind().is_transient() && Instant::now() < end, "{error:?}");
    }
    drop(proxy);
    work.join().unwrap();
}

fn in_every_state(verdict: Verdict) {
    std::thread::scope(|scope| {
        for packet in 0..12 {
            scope.spawn(move || stop_at(verdict, packet));
        }
    });
}

#[test]
fn a_client_cut_off_in_any_state_blocks_nobody() {
    in_every_state(Verdict::Cut);
}

#[test]
fn a_client_stopped_in_any_state_blocks_nobody() {
    in_every_state(Verdict::Hold);
}

#[test]
fn a_storm_of_batches_meets_no_deadlock() {
    let server = common::server();
    let recorder = recorder();
    let wish = Wish {
        claim: common::claim,
        names: (0..3).map(|n| format!("storm-{n}")).collect(),
        modes: modes(),
        term: Duration::from_secs(20),
        hold: Duration::ZERO,
        rounds: 40,
    };
    let stores: Vec<Arc<MysqlStore>> = (0..4).map(|_| open(server.port())).collect();
    let threads: Vec<_> = (0..12_u32)
        .map(|n| {
            let store: Arc<dyn Store> = Arc::clone(&stores[n as usize % 4]) as Arc<dyn Store>;
            contender(&recorder, n, store, wish.clone())
        })
        .collect();
    // Renewals of all names at once, in a changing order, beside it.
    let kept: Vec<ClaimRef> = (0..30)
        .map(|n| {
            let claim = claim(&format!("storm-kept-{n}"));
            named(&claim, &granted(&stores[0], &claim))
        })
        .collect();
    let mut turn = 0;
    while !threads.iter().all(std::thread::JoinHandle::is_finished) {
        let mut refs = kept.clone();
        refs.rotate_left(turn % 30);
        if turn % 2 == 0 {
            refs.reverse();
        }
        turn += 1;
        let answers = block_on(stores[turn % 4].renew(&refs));
        assert!(answers.iter().all(|a| matches!(a, Renewed::Alive { .. })), "{answers:?}");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    judge(&recorder);
    let status = server.sql("mysql", "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
    assert_eq!(status.trim().split('\t').next_back(), Some("0"), "{status}");
}

fn hosts(ports: &[u16]) -> MysqlConfig {
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    MysqlConfig::from_url(&format!("mysql://root@{}/leasehold", hosts.join(","))).unwrap()
}

#[test]
fn a_replica_that_takes_over_is_found_and_what_it_lacks_is_told() {
    let args = |id: u32| {
        let mut args = vec![format!("--server-id={id}"), "--log-bin=log".to_owned()];
        args.push("--binlog-format=MIXED".to_owned());
        if id == 2 {
            args.push("--read-only=ON".to_owned());
        }
        Options { args, ..Options::default() }
    };
    let (primary, replica) = (MariaDb::with(args(1)), MariaDb::with(args(2)));
    replica.sql(
        "mysql",
        &format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='root', \
             MASTER_USE_GTID=slave_pos; START SLAVE",
            primary.port()
        ),
    );
    primary.sql("mysql", "CREATE DATABASE leasehold");
    // The replica stands first, and is not taken while it is read-only.
    let config = hosts(&[replica.port(), primary.port()]);
    let store = block_on(MysqlStore::connect(config)).unwrap();
    let (kept, lost) = (claim("kept"), claim("lost"));
    let kept = named(&kept, &granted(&store, &kept));
    let rows = "SELECT COUNT(*) FROM leasehold_resource";
    leasehold_testkit::server::wait_until("the replica has it", PATIENCE, || {
        match replica.try_sql("leasehold", rows) {
            Ok(count) if count.trim() == "1" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    replica.sql("mysql", "STOP SLAVE");
    let late = granted(&store, &lost);
    let lost = named(&lost, &late);
    primary.server().kill9();
    replica.sql("mysql", "SET GLOBAL read_only = OFF");
    let end = Instant::now() + PATIENCE;
    let answers = loop {
        let answers = block_on(store.renew(&[kept.clone(), lost.clone()]));
        if !answers.iter().any(|a| matches!(a, Renewed::Unknown(_))) {
            break answers;
        }
        assert!(Instant::now() < end, "{answers:?}");
    };
    assert!(matches!(answers[0], Renewed::Alive { .. }), "{answers:?}");
    let told = matches!(answers[1], Renewed::Gone(leasehold_core::Ended::Failover));
    assert!(told, "{answers:?}");
    disturbed(&store, Cursor(0));
    let next = granted(&store, &claim("lost"));
    assert!(next.token > late.token, "tokens go on from the clock");
}
