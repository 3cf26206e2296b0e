//! Holders that are killed or stopped, and clocks that step.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/agent.rs"]
mod process;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::{
    claim, config, connect, granted, leaves, now, renew, root, server, until_granted, waits,
};
use leasehold_core::{Claim, Ended, Previous, Renewed, Store as _};
use leasehold_testkit::block_on;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::zookeeper::{Options, Release, Zookeeper};
use leasehold_testkit::server::{FakeTime, wait_until};
use process::Agent;

const PATIENCE: Duration = Duration::from_secs(60);
const DAY: i64 = 86_400;

/// The processes of this program that hold locks are started by this name.
#[test]
fn agent() {
    process::agent();
}

#[test]
fn a_killed_holder_is_followed_once_its_session_has_ended() {
    let root = root();
    let addr = server(Release::Newest).addr();
    let (mut holder, token) = Agent::holding(addr, &root, "r", None);
    let store = connect(config(addr, &root));
    let next = claim("r");
    waits(&store, &next);
    let until = holder.until();
    holder.process.kill9().unwrap();
    let grant = until_granted(&store, &next);
    assert!(now() >= until, "another was let in early");
    assert!(grant.token > token);
    assert_eq!(grant.previous, Previous::Ended(Ended::Expired));
}

#[test]
fn a_stopped_holder_is_followed_after_its_belief_and_knows_when_it_goes_on() {
    let root = root();
    let addr = server(Release::System).addr();
    let (holder, token) = Agent::holding(addr, &root, "r", None);
    let store = connect(config(addr, &root));
    let next = claim("r");
    waits(&store, &next);
    holder.process.stop().unwrap();
    let grant = until_granted(&store, &next);
    let at = now();
    assert!(grant.token > token);
    holder.process.cont().unwrap();
    let until = holder.lost();
    assert!(at >= until, "another was let in {:?} early", until.since(at));
    let kept = renew(&store, &next);
    assert!(matches!(kept, Renewed::Granted(_)), "who went on touched the newer grant: {kept:?}");
}

/// Only time that passes counts, and no wall clock of ours is asked for it.
#[test]
fn a_step_of_the_holders_wall_clock_changes_nothing() {
    let root = root();
    let addr = server(Release::Newest).addr();
    let time = FakeTime::new();
    let (mut holder, token) = Agent::holding(addr, &root, "r", Some(&time));
    let store = connect(config(addr, &root));
    let next = claim("r");
    let before = waits(&store, &next);
    for step in [DAY, -DAY] {
        time.step(step);
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let away = i64::try_from(holder.ask("wall")).unwrap() - i64::try_from(wall).unwrap();
        assert!((away - step).abs() < 60, "it is not shown that clock: {away}");
        // It is renewed for longer than a session, and nobody else is let in.
        let begun = holder.until();
        wait_until("renewed", PATIENCE, || {
            let until = holder.until();
            if until > begun + common::SESSION { Ok(()) } else { Err(format!("{until:?}")) }
        });
        assert!(!holder.is_lost(), "a step of {step} s ended it");
        assert_eq!(waits(&store, &next).ticket, before.ticket);
    }
    assert_eq!(holder.ask("close"), 1);
    assert!(until_granted(&store, &next).token > token);
}

/// ZooKeeper ends sessions by a clock that only runs on.
#[test]
fn a_step_of_the_servers_wall_clock_ends_no_session() {
    let time = Arc::new(FakeTime::new());
    let server = Zookeeper::with(Options { time: Some(Arc::clone(&time)), ..Options::default() });
    let addr = server.addr();
    let store = connect(config(addr, "steps"));
    let term = store.profile().term_bounds.1;
    for step in [DAY, -DAY] {
        time.step(0);
        let (held, next) = (Claim { term, ..claim("r") }, claim("r"));
        let grant = granted(&store, &held);
        let before = waits(&store, &next);
        time.step(step);
        assert!((wall(addr) - step).abs() < 60, "it is not shown that clock");
        let begun = now();
        while now() < begun + common::SESSION {
            let renewed = renew(&store, &held);
            assert!(matches!(renewed, Renewed::Granted(_)), "a step of {step} s: {renewed:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(waits(&store, &next).ticket, before.ticket);
        leaves(&store, &held);
        let after = until_granted(&store, &next);
        assert!(after.token > grant.token);
        leaves(&store, &next);
    }
}

/// When a holder died is told by the servers' wall clock. Set back, it would hold back for a day who
/// asked for a second.
#[test]
fn who_is_held_back_after_a_loss_is_let_in_though_the_servers_wall_clock_was_set_back() {
    let time = Arc::new(FakeTime::new());
    time.step(DAY);
    let server = Zookeeper::with(Options { time: Some(Arc::clone(&time)), ..Options::default() });
    let addr = server.addr();
    let after_loss = |span| Claim { after_loss: span, ..claim("r") };
    let proxy = Proxy::start(addr);
    let dying = connect(config(proxy.addr(), "back"));
    granted(&dying, &claim("r"));
    // The one behind it sees its death, and writes down when.
    let store = connect(config(addr, "back"));
    let next = after_loss(PATIENCE * 60);
    waits(&store, &next);
    proxy.refuse(true);
    proxy.sever();
    wait_until("the death is known", PATIENCE, || {
        let queue = block_on(store.inspect(&next.resource)).unwrap();
        if queue.last_end == Some(Ended::Expired) { Ok(()) } else { Err(format!("{queue:?}")) }
    });
    time.step(0);
    leaves(&store, &next);
    // One that has not heard of the time before.
    let fresh = connect(config(addr, "back"));
    let held_back = after_loss(Duration::from_secs(1));
    let begun = now();
    until_granted(&fresh, &held_back);
    assert!(now() >= begun + Duration::from_secs(1));
}

/// How far the wall clock of a server is away from ours, in seconds.
fn wall(addr: std::net::SocketAddr) -> i64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mtime = runtime.block_on(async {
        let client = zookeeper_client::Client::connect(&addr.to_string()).await.unwrap();
        client.set_data("/steps", b"", None).await.unwrap().mtime
    });
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    mtime / 1000 - i64::try_from(ours).unwrap()
}
