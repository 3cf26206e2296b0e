//! What is usual is told in few words and few commands, and decided as everything else is.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::{Admission, Claim, Ended, Left, Place, Renewed, Store};
use leasehold_redis::{Layout, RedisStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::redis::Redis;
use leasehold_testkit::server::wait_until;

const PATIENCE: Duration = Duration::from_secs(30);
const LAYOUTS: [Layout; 2] = [Layout::Redisson, Layout::Plain];

/// Claims of names that were used before.
fn used(store: &RedisStore, count: usize) -> Vec<Claim> {
    let used = (0..count).map(|n| {
        let name = common::fresh(&format!("usual-{n}"));
        let first = common::claim(&name);
        let grant = common::granted(store, &first);
        let left = block_on(store.leave(&common::named(&first, &grant))).unwrap();
        assert_eq!(left, Left::Released);
        Claim { place: Place::No, ..common::claim(&name) }
    });
    used.collect()
}

/// How many scripts the server was sent since it was last asked to count anew.
fn sent(server: &Redis) -> usize {
    let told = server.cli(&["INFO", "commandstats"]);
    let calls = told.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = calls.and_then(|rest| rest.split(',').next()?.parse().ok());
    server.cli(&["CONFIG", "RESETSTAT"]);
    calls.unwrap_or_default()
}

fn state(claim: &Claim) -> String {
    format!("leasehold:s:{{{}}}", claim.resource)
}

#[test]
fn many_that_come_at_once_are_told_as_few_and_each_is_decided_alone() {
    let server = Redis::start();
    for layout in LAYOUTS {
        let store = common::open(&server, layout);
        let claims = used(&store, 200);
        sent(&server);
        let entered = block_on(join_all(claims.iter().map(|claim| store.enter(claim))));
        let granted = |answer| match answer {
            Ok(Admission::Granted(grant)) => grant,
            other => panic!("{other:?}"),
        };
        let grants: Vec<_> = entered.into_iter().map(granted).collect();
        assert!(sent(&server) < 100);
        let named: Vec<_> =
            claims.iter().zip(&grants).map(|(c, grant)| common::named(c, grant)).collect();
        let renewed = block_on(store.renew(&named));
        assert!(renewed.iter().all(|answer| matches!(answer, Renewed::Alive { .. })));
        assert!(sent(&server) < 10);
        let left = block_on(join_all(named.iter().map(|claim| store.leave(claim))));
        assert!(left.into_iter().all(|answer| answer.unwrap() == Left::Released));
        assert!(sent(&server) < 100);
        assert!(claims.iter().all(|claim| server.cli(&["TYPE", &state(claim)]) == "string"));
        assert!(claims.iter().all(|c| server.cli(&["EXISTS", c.resource.as_str()]) == "0"));
    }
}

/// Also where the same name is among them twice, a claim is there already, and another's lock.
#[test]
fn of_those_that_come_at_once_for_one_name_one_gets_it() {
    let server = Redis::start();
    for layout in LAYOUTS {
        let store = common::open(&server, layout);
        let claims = used(&store, 60);
        let foreign = &claims[7];
        match layout {
            Layout::Redisson => server.cli(&["HSET", foreign.resource.as_str(), "java:1", "1"]),
            Layout::Plain => server.cli(&["SET", foreign.resource.as_str(), "another's"]),
        };
        let again: Vec<Claim> = claims
            .iter()
            .map(|claim| Claim { place: Place::No, ..common::claim(&claim.resource) })
            .collect();
        let all: Vec<&Claim> = claims.iter().chain(&again).collect();
        let entered = block_on(join_all(all.iter().map(|claim| store.enter(claim))));
        let mut granted = HashMap::new();
        for (claim, answer) in all.iter().zip(entered) {
            match answer.unwrap() {
                Admission::Granted(grant) => {
                    let before = granted.insert(claim.resource.clone(), grant.token);
                    assert!(before.is_none(), "two hold {}", claim.resource);
                }
                Admission::Busy(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(granted.len(), claims.len() - 1);
        assert!(!granted.contains_key(&foreign.resource));
    }
}

#[test]
fn a_lock_that_was_waited_for_is_plain_again_once_nobody_has_waited_for_a_while() {
    let server = common::shared();
    for layout in LAYOUTS {
        let store = common::open(server, layout);
        let first = used(&store, 1).remove(0);
        let waiter = common::claim(&first.resource);
        common::granted(&store, &first);
        assert_eq!(server.cli(&["TYPE", &state(&first)]), "string");
        common::waiting(&store, &waiter);
        assert_eq!(server.cli(&["TYPE", &state(&first)]), "hash");
        assert_eq!(common::leave(&store, &first), Left::Released);
        let answer = common::renew(&store, &waiter.to_ref());
        assert!(matches!(answer, Renewed::Granted(_)), "{answer:?}");
        assert_eq!(common::leave(&store, &waiter), Left::Released);
        wait_until("it is plain again", PATIENCE, || {
            let next = common::claim(&first.resource);
            let grant = common::granted(&store, &next);
            let told = server.cli(&["TYPE", &state(&first)]);
            assert_eq!(
                block_on(store.leave(&common::named(&next, &grant))).unwrap(),
                Left::Released
            );
            // A release that is told twice is found again.
            let again = block_on(store.leave(&common::named(&next, &grant))).unwrap();
            assert_eq!(again, Left::Gone(Ended::Released));
            if told == "string" { Ok(()) } else { Err(told) }
        });
    }
}

/// What the few words do not say is looked at by the whole script: a life, a term, a break.
#[test]
fn a_renewal_that_changes_something_and_a_break_are_not_missed() {
    let server = common::shared();
    for layout in LAYOUTS {
        let store = common::open(server, layout);
        let claim = used(&store, 1).remove(0);
        let grant = common::granted(&store, &claim);
        let mut named = common::named(&claim, &grant);
        named.term *= 2;
        assert!(matches!(common::renew(&store, &named), Renewed::Alive { .. }));
        let ttl: u64 = server.cli(&["PTTL", claim.resource.as_str()]).parse().unwrap();
        assert!(Duration::from_millis(ttl) > claim.term);
        block_on(store.break_(&claim.resource, None, false)).unwrap();
        assert!(matches!(common::renew(&store, &named), Renewed::Gone(Ended::Broken)));
        assert_eq!(block_on(store.leave(&named)).unwrap(), Left::Released);
    }
}
