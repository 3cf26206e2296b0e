//! Grants that replicas must have before they count.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use leasehold_core::{Cursor, ErrorKind, Hint, Renewed, Store};
use leasehold_redis::{Durability, Layout, RedisStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::redis::{Options, Redis};
use leasehold_testkit::server::wait_until;

const PATIENCE: Duration = Duration::from_secs(30);

struct Ground {
    master: Redis,
    replica: Redis,
}

impl Ground {
    fn new() -> Ground {
        let master = Redis::start();
        let replica =
            Redis::with(Options { replica_of: Some(master.port()), ..Options::default() });
        wait_until("the replica is in touch", PATIENCE, || {
            let told = master.cli(&["INFO", "replication"]);
            if told.contains("state=online") { Ok(()) } else { Err(told) }
        });
        Ground { master, replica }
    }

    fn open(&self, durability: Durability) -> RedisStore {
        let mut config = common::config(self.master.port(), Layout::Redisson);
        config.durability = durability;
        block_on(RedisStore::connect(config)).unwrap()
    }
}

#[test]
fn a_grant_that_no_replica_has_is_taken_back() {
    let ground = Ground::new();
    let store = ground.open(Durability::Wait(1));
    let name = common::fresh("durable");
    let held = common::claim(&name);
    common::granted(&store, &held);
    let copied = ground.replica.cli(&["EXISTS", name.as_str()]);
    assert_eq!(copied, "1", "the replica has it when it is returned");
    common::leave(&store, &held);

    ground.replica.server().stop();
    let error = block_on(store.enter(&common::claim(&name))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert_eq!(ground.master.cli(&["EXISTS", name.as_str()]), "0", "nothing is left");
    // Who asks for less gets it.
    let local = ground.open(Durability::Local);
    let other = common::claim(&name);
    common::granted(&local, &other);
    common::leave(&local, &other);
    ground.replica.server().cont();
    common::granted(&store, &common::claim(&name));
}

/// What a waiter's own enter was confirmed for says nothing of the grant that another's release made
/// later: it counts once replicas have a write of the waiter's own.
#[test]
fn a_grant_made_by_anothers_release_is_confirmed_first() {
    let ground = Ground::new();
    let (store, other) = (ground.open(Durability::Wait(1)), ground.open(Durability::Local));
    let name = common::fresh("handed");
    let (held, waiter) = (common::claim(&name), common::claim(&name));
    common::granted(&other, &held);
    common::waiting(&store, &waiter);
    ground.replica.server().stop();
    common::leave(&other, &held);
    let heard = block_on(store.changed(&name, Some(waiter.id), Cursor(0), PATIENCE)).unwrap();
    assert!(matches!(heard, Hint::Moved(_)), "told to look, not of a grant: {heard:?}");
    let answer = common::renew(&store, &waiter.to_ref());
    let Renewed::Unknown(error) = answer else { panic!("believed: {answer:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    ground.replica.server().cont();
    wait_until("it is confirmed", PATIENCE, || match common::renew(&store, &waiter.to_ref()) {
        Renewed::Granted(_) => Ok(()),
        Renewed::Unknown(error) => Err(error.to_string()),
        other => panic!("{other:?}"),
    });
}

#[test]
fn a_server_that_cannot_wait_for_its_disk_is_refused() {
    let master = Redis::start();
    let mut config = common::config(master.port(), Layout::Redisson);
    config.durability = Durability::WaitAof(0);
    let answer = block_on(RedisStore::connect(config));
    let error = match answer {
        Err(error) => error,
        Ok(store) => block_on(store.enter(&common::claim(&common::fresh("disk")))).unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}
