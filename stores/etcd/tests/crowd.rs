//! Many that wait for one lock: each turn is told to the few whose turn is near, and nobody is
//! forgotten for that.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{claim, granted, until_pushed, waits};
use futures_lite::future::block_on;
use leasehold_core::{Claim, ClaimRef, Ended, Left, Store, Token};
use leasehold_etcd::EtcdStore;
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::etcd::{Etcd, Options, Release};
use leasehold_testkit::server::wait_until;

const LONG: Duration = Duration::from_secs(60);

/// One process, and its claim.
type Waiter = (EtcdStore, Claim);

fn long(name: &str) -> Claim {
    Claim { term: LONG, ..claim(name) }
}

/// So many processes of which each waits behind the one before it.
fn line(port: u16, count: usize) -> Vec<Waiter> {
    let waiter = |_| {
        let (store, claim) = (common::connect(common::config(port, "")), long("r"));
        waits(&store, &claim);
        (store, claim)
    };
    (0..count).map(waiter).collect()
}

/// All of them get their turn, in order and with tokens that rise.
fn turns(line: &[Waiter], mut last: Token) {
    for (store, claim) in line {
        let grant = until_pushed(store, claim);
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        let named = ClaimRef { token: Some(last), ..claim.to_ref() };
        assert_eq!(block_on(store.leave(&named)).unwrap(), Left::Released);
    }
}

#[test]
fn a_turn_is_told_to_those_only_whose_turn_is_near() {
    const COUNT: u32 = 60;
    for release in Release::ALL {
        let etcd = Etcd::with(Options { release, ..Options::default() });
        let sent =
            || etcd.metric_of("grpc_server_msg_sent_total", "grpc_method=\"Watch\"").unwrap_or(0.0);
        let (first, held) = (common::connect(common::config(etcd.port(), "")), long("r"));
        let grant = granted(&first, &held);
        let line = line(etcd.port(), COUNT as usize);
        block_on(first.leave(&held.to_ref())).unwrap();
        turns(&line, grant.token);
        // Told to all that wait, each turn would be told to half of them on the average, and each
        // coming too.
        let told = sent() / f64::from(COUNT);
        assert!(told < f64::from(COUNT) / 2.0, "{told} words a turn of {COUNT}");
    }
}

#[test]
fn who_waits_far_back_is_not_forgotten_whoever_goes_before_it() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.addr());
    let (first, held) = (common::connect(common::config(etcd.port(), "")), long("r"));
    let grant = granted(&first, &held);
    let mut line = line(proxy.port(), 16);
    // Some give up, one dies, the streams break, and somebody deletes a key.
    for at in [12, 11, 7] {
        let (store, claim) = line.remove(at);
        assert_eq!(block_on(store.leave(&claim.to_ref())).unwrap(), Left::Released);
    }
    drop(line.remove(9));
    proxy.sever();
    let (_deleted, claim) = line.remove(4);
    etcd.ctl(&["del", &format!("r/{}", claim.id)]);
    block_on(first.leave(&held.to_ref())).unwrap();
    turns(&line, grant.token);
    common::until_no_claim(&etcd, "r");
}

#[test]
fn a_crowd_stands_behind_foreign_clients_too() {
    let etcd = Etcd::start();
    let mut go = Foreign::etcd(&etcd.addr().to_string(), &["ttl=30"]);
    let locked = go.call("ann", "lock r").text;
    assert!(locked.starts_with("locked"), "{locked}");
    let stands = |count: usize| {
        wait_until("it stands in the queue", Duration::from_secs(30), || {
            let keys = etcd.ctl(&["get", "--prefix", "--keys-only", "r/"]);
            let there = keys.lines().filter(|key| !key.is_empty()).count();
            if there == count { Ok(()) } else { Err(format!("{there} of {count}")) }
        });
    };
    let mut foreign = Vec::new();
    for name in ["ben", "cid", "dan", "eve", "fay", "gus", "hal", "ida"] {
        foreign.push((name, go.send(name, "lock r")));
        stands(1 + foreign.len());
    }
    let line = line(etcd.port(), 3);
    go.call("ann", "unlock r");
    for (name, waiting) in foreign {
        assert!(go.result(waiting).text.starts_with("locked"));
        go.call(name, "unlock r");
    }
    turns(&line, Token::new(1).unwrap());
}

#[test]
fn a_waiter_whose_key_was_deleted_does_not_hold_when_its_turn_comes() {
    let etcd = Etcd::start();
    let (first, held) = (common::connect(common::config(etcd.port(), "")), long("r"));
    granted(&first, &held);
    let line = line(etcd.port(), 2);
    let [(gone, claim), (next, behind)] = line.as_slice() else { panic!("two") };
    etcd.ctl(&["del", &format!("r/{}", claim.id)]);
    block_on(first.leave(&held.to_ref())).unwrap();
    until_pushed(next, behind);
    let answer = common::renewed(gone, claim);
    let is_gone = matches!(
        answer,
        leasehold_core::Renewed::Gone(Ended::Expired | Ended::Unknown | Ended::Released)
    );
    assert!(is_gone, "{answer:?}");
}
