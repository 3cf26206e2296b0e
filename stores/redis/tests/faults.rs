//! What happens to a server, and what its users are told.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, Clock as _, Cursor, Ended, Hint, Left, Mode, Place, Renewed, Store, Written,
};
use leasehold_redis::{Layout, RedisStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::redis::{Options, Redis};
use leasehold_testkit::server::{FakeTime, wait_until};

const PATIENCE: Duration = Duration::from_secs(30);
const LAYOUTS: [Layout; 2] = [Layout::Redisson, Layout::Plain];

fn gone(store: &RedisStore, claim: &leasehold_core::ClaimRef) -> Ended {
    match common::renew(store, claim) {
        Renewed::Gone(how) => how,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flush_behind_the_holders_back_is_told_and_tokens_rise_over_it() {
    let server = Redis::start();
    for layout in LAYOUTS {
        let store = common::open(&server, layout);
        let held = common::claim(&common::fresh("flushed"));
        let grant = common::granted(&store, &held);
        server.cli(&["FLUSHALL"]);
        assert_eq!(gone(&store, &common::named(&held, &grant)), Ended::Unknown);
        let next = common::granted(&store, &common::claim(&held.resource));
        assert!(next.token > grant.token);
    }
}

#[test]
fn an_evicted_lock_is_told() {
    let server = common::shared();
    for layout in LAYOUTS {
        let store = common::open(server, layout);
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, limit: 1 }] {
            let held = Claim { mode, ..common::claim(&common::fresh("evicted")) };
            let grant = common::granted(&store, &held);
            server.cli(&["DEL", held.resource.as_str()]);
            assert_eq!(gone(&store, &common::named(&held, &grant)), Ended::Evicted);
            let next = Claim { mode, ..common::claim(&held.resource) };
            assert!(common::granted(&store, &next).token > grant.token);
            assert_eq!(common::leave(&store, &held), Left::Gone(Ended::Evicted));
            assert_eq!(common::leave(&store, &next), Left::Released);
        }
    }
}

/// The server throws keys away by itself, whichever they are: of every claim it is told whether it
/// still holds, and nobody gets in beside one that does.
#[test]
fn what_an_eviction_policy_takes_is_told() {
    let server = Redis::start();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    for layout in LAYOUTS {
        let store = common::open(&server, layout);
        let claims: Vec<Claim> =
            (0..400).map(|_| common::claim(&common::fresh("evicted"))).collect();
        let grants: Vec<_> = claims.iter().map(|claim| common::granted(&store, claim)).collect();
        let told = server.cli(&["INFO", "memory"]);
        let used = told.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        let used: u64 = used.trim().parse().unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", &(used - 150_000).to_string()]);
        wait_until("something is evicted", PATIENCE, || {
            server.cli(&["PING"]);
            let told = server.cli(&["INFO", "stats"]);
            if told.contains("evicted_keys:0") { Err(told) } else { Ok(()) }
        });
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        let mut lost = 0;
        for (claim, grant) in claims.iter().zip(grants) {
            let next = Claim { place: Place::No, ..common::claim(&claim.resource) };
            match common::renew(&store, &common::named(claim, &grant)) {
                Renewed::Alive { .. } => {
                    let answer = block_on(store.enter(&next)).unwrap();
                    assert!(matches!(answer, Admission::Busy(_)), "{answer:?}");
                }
                Renewed::Gone(Ended::Evicted | Ended::Unknown) => {
                    lost += 1;
                    assert!(matches!(common::leave(&store, claim), Left::Gone(_)));
                    assert!(common::granted(&store, &next).token > grant.token);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(lost > 0);
        server.cli(&["FLUSHALL"]);
        server.cli(&["CONFIG", "RESETSTAT"]);
    }
}

/// A server that did nothing for longer than a term: who held has stopped believing before the
/// server says so, and the next gets it.
#[test]
fn a_server_that_stands_still_for_longer_than_a_term_is_survived() {
    let args = vec!["--enable-debug-command".into(), "local".into()];
    let server = Redis::with(Options { args, ..Options::default() });
    let store = common::open(&server, Layout::Redisson);
    let term = Duration::from_millis(500);
    let held = Claim { term, ..common::claim(&common::fresh("still")) };
    let Admission::Granted(grant) = block_on(store.enter(&held)).unwrap() else {
        panic!("it is free");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| server.cli(&["DEBUG", "SLEEP", "2"]));
        wait_until("it stands still", PATIENCE, || {
            match common::renew(&store, &common::named(&held, &grant)) {
                Renewed::Gone(Ended::Expired) => Ok(()),
                Renewed::Alive { .. } => Err("it is renewed".into()),
                other => panic!("{other:?}"),
            }
        });
    });
    assert!(leasehold_net::BootClock.now() > grant.until);
    assert!(common::granted(&store, &common::claim(&held.resource)).token > grant.token);
}

#[test]
fn a_renamed_lock_is_told() {
    let server = common::shared();
    let store = common::open(server, Layout::Redisson);
    let held = common::claim(&common::fresh("renamed"));
    let grant = common::granted(&store, &held);
    let (from, to) = (held.resource.as_str(), format!("{}-away", held.resource));
    server.cli(&["RENAME", from, &to]);
    assert_eq!(gone(&store, &common::named(&held, &grant)), Ended::Evicted);
    common::granted(&store, &common::claim(&held.resource));
}

#[test]
fn a_lock_whose_state_was_evicted_is_freed_by_its_own_holder() {
    let server = common::shared();
    for layout in LAYOUTS {
        let store = common::open(server, layout);
        let held = common::claim(&common::fresh("stateless"));
        let grant = common::granted(&store, &held);
        server.cli(&["DEL", &format!("leasehold:s:{{{}}}", held.resource)]);
        assert_eq!(gone(&store, &common::named(&held, &grant)), Ended::Unknown);
        // Nobody gets in beside it while its mark is there.
        let attempt = Claim { place: Place::No, ..common::claim(&held.resource) };
        let answer = block_on(store.enter(&attempt)).unwrap();
        assert!(matches!(answer, Admission::Busy(_)), "{answer:?}");
        assert!(matches!(common::leave(&store, &held), Left::Gone(_)));
        common::granted(&store, &common::claim(&held.resource));
    }
}

#[test]
fn an_evicted_queue_loses_places_and_nothing_else() {
    let server = common::shared();
    let store = common::open(server, Layout::Redisson);
    for evicted in ["w", "p"] {
        let name = common::fresh("queueless");
        let (held, waiter, late) =
            (common::claim(&name), common::claim(&name), common::claim(&name));
        let grant = common::granted(&store, &held);
        common::waiting(&store, &waiter);
        server.cli(&["DEL", &format!("leasehold:{evicted}:{{{name}}}")]);
        let answer = common::renew(&store, &waiter.to_ref());
        let is_lost = matches!(answer, Renewed::Gone(Ended::Evicted));
        assert_eq!(is_lost, evicted == "w", "{answer:?}");
        let answer = common::renew(&store, &common::named(&held, &grant));
        assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
        common::waiting(&store, &late);
        common::leave(&store, &held);
        if !is_lost {
            common::leave(&store, &waiter);
        }
        common::granted(&store, &late);
    }
}

#[test]
fn a_full_server_refuses_claims_and_lets_go_of_them() {
    let server = Redis::start();
    for layout in LAYOUTS {
        let store = common::open(&server, layout);
        let name = common::fresh("full");
        let (held, waiter) = (common::claim(&name), common::claim(&name));
        let other = Claim { mode: Mode::Shared, ..common::claim(&common::fresh("shared")) };
        let grant = common::granted(&store, &held);
        common::granted(&store, &other);
        common::waiting(&store, &waiter);
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = block_on(store.enter(&common::claim(&common::fresh("new")))).unwrap_err();
        assert!(error.kind().is_transient(), "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
        let answer = common::renew(&store, &common::named(&held, &grant));
        assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
        assert!(matches!(common::renew(&store, &waiter.to_ref()), Renewed::Waiting(_)));
        assert_eq!(common::leave(&store, &held), Left::Released);
        assert!(matches!(common::renew(&store, &waiter.to_ref()), Renewed::Granted(_)));
        assert_eq!(common::leave(&store, &other), Left::Released);
        let broken = block_on(store.break_(&name, None, true)).unwrap();
        assert!(matches!(broken, leasehold_core::Broken::Marked(_)), "{broken:?}");
        server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
        common::granted(&store, &common::claim(&name));
    }
}

#[test]
fn flushed_scripts_are_loaded_again() {
    let server = Redis::start();
    let store = common::open(&server, Layout::Redisson);
    let claim = common::claim(&common::fresh("scripts"));
    let grant = common::granted(&store, &claim);
    server.cli(&["SCRIPT", "FLUSH"]);
    let answer = common::renew(&store, &common::named(&claim, &grant));
    assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
    server.cli(&["SCRIPT", "FLUSH"]);
    let written = block_on(store.write(&claim.to_ref(), b"x", PATIENCE)).unwrap();
    assert_eq!(written, Written::Stored);
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(common::leave(&store, &claim), Left::Released);
}

#[test]
fn a_cut_subscriber_is_made_anew_and_misses_nothing() {
    let server = Redis::start();
    let store = common::open(&server, Layout::Redisson);
    let name = common::fresh("cut");
    let (held, waiter) = (common::claim(&name), common::claim(&name));
    common::granted(&store, &held);
    common::waiting(&store, &waiter);
    for _ in 0..3 {
        let cursor =
            match block_on(store.changed(&name, Some(waiter.id), Cursor(0), Duration::ZERO)) {
                Ok(Hint::Moved(cursor)) => cursor,
                other => panic!("{other:?}"),
            };
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let heard = block_on(store.changed(&name, Some(waiter.id), cursor, PATIENCE)).unwrap();
        assert!(matches!(heard, Hint::Moved(after) if after > cursor), "{heard:?}");
        assert!(matches!(common::renew(&store, &waiter.to_ref()), Renewed::Waiting(_)));
    }
    wait_until("it listens again", PATIENCE, || {
        let told = server.cli(&["PUBSUB", "CHANNELS"]);
        if told.starts_with("leasehold:wake:") { Ok(()) } else { Err(told) }
    });
    common::leave(&store, &held);
    let heard = block_on(async {
        let mut since = Cursor(u64::MAX);
        loop {
            match store.changed(&name, Some(waiter.id), since, PATIENCE).await.unwrap() {
                Hint::Moved(cursor) => since = cursor,
                Hint::Granted(pushed) => return pushed,
            }
        }
    });
    assert_eq!(heard.grant.claim, waiter.id);
}

#[test]
fn a_server_that_sleeps_loses_nothing() {
    let server = Redis::start();
    let store = common::open(&server, Layout::Redisson);
    let claim = common::claim(&common::fresh("sleeps"));
    let grant = common::granted(&store, &claim);
    server.cli(&["CLIENT", "PAUSE", "1000", "ALL"]);
    wait_until("it is renewed", PATIENCE, || {
        match common::renew(&store, &common::named(&claim, &grant)) {
            Renewed::Alive { .. } => Ok(()),
            Renewed::Unknown(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    });
    server.server().stop();
    let answer = common::renew(&store, &common::named(&claim, &grant));
    assert!(matches!(answer, Renewed::Unknown(_)), "{answer:?}");
    server.server().cont();
    wait_until("it is renewed", PATIENCE, || {
        match common::renew(&store, &common::named(&claim, &grant)) {
            Renewed::Alive { .. } => Ok(()),
            Renewed::Unknown(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    });
}

/// The server's clock is set forward: what it ended early is told as such. Set back, what is held
/// is rightly held, and tokens rise.
#[test]
fn a_step_of_the_servers_clock_is_told() {
    let time = Arc::new(FakeTime::new());
    let server = Redis::with(Options { time: Some(Arc::clone(&time)), ..Options::default() });
    for layout in LAYOUTS {
        time.step(0);
        let store = common::open(&server, layout);
        let held = common::claim(&common::fresh("ahead"));
        let grant = common::granted(&store, &held);
        let before = block_on(store.disturbed(Cursor(0)));
        time.step(3600);
        assert_eq!(gone(&store, &common::named(&held, &grant)), Ended::Clock);
        assert!(block_on(store.disturbed(before)) > before);

        time.step(0);
        let store = common::open(&server, layout);
        let name = common::fresh("behind");
        let (held, waiter) = (common::claim(&name), common::claim(&name));
        let grant = common::granted(&store, &held);
        time.step(-3600);
        let answer = common::renew(&store, &common::named(&held, &grant));
        assert!(matches!(answer, Renewed::Alive { .. }), "{answer:?}");
        common::waiting(&store, &waiter);
        common::leave(&store, &held);
        let Renewed::Granted(next) = common::renew(&store, &waiter.to_ref()) else {
            panic!("it waits for nobody");
        };
        assert!(next.token > grant.token);
    }
}

#[test]
fn a_restart_without_persistence_is_told_as_a_failover() {
    let server = Redis::start();
    let store = common::open(&server, Layout::Redisson);
    let held = common::claim(&common::fresh("restarted"));
    let grant = common::granted(&store, &held);
    server.server().kill9();
    server.server().restart_empty();
    wait_until("it is told", PATIENCE, || {
        match common::renew(&store, &common::named(&held, &grant)) {
            Renewed::Gone(Ended::Failover) => Ok(()),
            Renewed::Unknown(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        }
    });
    let next = common::granted(&store, &common::claim(&held.resource));
    assert!(next.token > grant.token);
}
