//! What is lost, and what is not, when members, connections and clients are hurt.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/contest.rs"]
mod contest;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{claim, granted, renewed, until_pushed, waits};
use contest::Contest;
use futures_lite::future::block_on;
use leasehold_core::{Admission, Claim, Clock, Ended, Loss, Renewed, Store};
use leasehold_etcd::{EtcdConfig, EtcdStore};
use leasehold_net::BootClock;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::etcd::{Cluster, Etcd, Options, Release};
use leasehold_testkit::server::wait_until;

fn all(members: &[Etcd], first: usize) -> EtcdConfig {
    let mut config = common::config(members[0].port(), "");
    let mut hosts: Vec<_> =
        members.iter().flat_map(|m| common::config(m.port(), "").hosts).collect();
    let count = hosts.len();
    hosts.rotate_left(first % count);
    config.hosts = hosts;
    config
}

#[test]
fn nobody_believes_beside_another_whatever_member_is_hurt() {
    hurt_members(Release::Newest);
}

#[test]
fn nobody_believes_beside_another_on_an_old_cluster() {
    hurt_members(Release::System);
}

/// Kills and stops members under contenders.
fn hurt_members(release: Release) {
    let cluster = Cluster::with(3, &Options { release, ..Options::default() });
    let contest = Contest::default();
    let clients: Vec<_> = (0_u64..)
        .zip(0..4)
        .map(|(n, first)| {
            let client = common::client(all(cluster.members(), first));
            contest.join(n, client, "contended")
        })
        .collect();
    contest.until_rounds(10);
    for _ in 0..2 {
        let leader = cluster.leader();
        leader.server().kill9();
        contest.until_rounds(5);
        leader.server().restart();
        cluster.wait(3);
        stop_the_leader(&cluster, &contest);
        let follower = cluster.follower();
        follower.server().stop();
        contest.until_rounds(5);
        follower.server().cont();
        follower.server().kill9();
        contest.until_rounds(5);
        follower.server().restart();
        cluster.wait(3);
    }
    for member in cluster.members() {
        member.server().kill9();
    }
    std::thread::scope(|scope| {
        for member in cluster.members() {
            scope.spawn(|| member.server().restart());
        }
    });
    cluster.wait(3);
    contest.until_rounds(10);
    contest.end(clients);
    common::until_no_claim(&cluster.members()[0], "contended");
    common::until_no_lease(&cluster.members()[0]);
}

/// A leader that was stopped and goes on may revoke leases that live before it hears that it leads no
/// more. Its own count of them shows it; no client can see that before its watch tells.
fn stop_the_leader(cluster: &Cluster, contest: &Contest) {
    let leader = cluster.leader();
    let revoked = || leader.metric("etcd_debugging_server_lease_expired_total").unwrap();
    let before = revoked();
    leader.server().stop();
    contest.until_rounds(5);
    let from = BootClock.now();
    leader.server().cont();
    cluster.wait(3);
    contest.until_rounds(5);
    if revoked() > before {
        contest.excuse(from, BootClock.now());
    }
}

#[test]
fn a_client_that_is_cut_off_stops_believing_before_another_holds() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.addr());
    let near = common::client(common::config(etcd.port(), ""));
    let far = common::client(common::config(proxy.port(), ""));
    for one_way in [false, true] {
        let ttl = Duration::from_secs(2);
        let lease = block_on(far.lock("r").ttl(ttl).acquire()).unwrap();
        if one_way {
            proxy.pause_to_client(true)
        } else {
            proxy.pause()
        }
        let lost = std::thread::spawn({
            let lost = lease.lost();
            move || (block_on(lost), BootClock.now())
        });
        let next = block_on(near.lock("r").ttl(ttl).acquire()).unwrap();
        let got_at = BootClock.now();
        let (loss, lost_at) = lost.join().unwrap();
        assert_eq!(loss, Loss::Unreachable);
        assert!(lost_at <= got_at, "belief ended {:?} late", lost_at.since(got_at));
        assert!(next.token() > lease.token());
        proxy.pause_to_client(false);
        proxy.resume();
        let release = block_on(lease.release());
        assert!(matches!(release, leasehold::Release::AlreadyLost(_)), "{release:?}");
        common::released(next);
    }
}

#[test]
fn a_lease_that_was_revoked_is_told_at_once() {
    let etcd = Etcd::with(Options { release: Release::Newest, ..Options::default() });
    let client = common::client(common::config(etcd.port(), ""));
    let lease = block_on(client.lock("r").ttl(Duration::from_secs(60)).acquire()).unwrap();
    for line in etcd.ctl(&["lease", "list"]).lines().skip(1) {
        etcd.ctl(&["lease", "revoke", line]);
    }
    let began = Instant::now();
    let loss = block_on(lease.lost());
    assert!(matches!(loss, Loss::Expired | Loss::Stolen), "{loss:?}");
    assert!(began.elapsed() < Duration::from_secs(30), "not only at its end");
    let again = block_on(client.lock("r").ttl(Duration::from_secs(60)).acquire()).unwrap();
    assert!(again.token() > lease.token());
    common::released(again);
}

#[test]
fn a_waiter_outlives_a_compaction_and_hears_of_its_grant() {
    for release in Release::ALL {
        let etcd = Etcd::with(Options { release, ..Options::default() });
        let proxy = Proxy::start(etcd.addr());
        let near = common::connect(common::config(etcd.port(), ""));
        let far = common::connect(common::config(proxy.port(), ""));
        let (held, waiter) = (claim("r"), claim("r"));
        let first = granted(&near, &Claim { term: Duration::from_secs(60), ..held.clone() });
        waits(&far, &waiter);
        // What it would have heard is compacted away while it is cut off.
        proxy.refuse(true);
        proxy.sever();
        for n in 0..20 {
            etcd.ctl(&["put", "other", &n.to_string()]);
        }
        block_on(near.leave(&held.to_ref())).unwrap();
        let fields = etcd.ctl(&["put", "other", "last", "--write-out", "fields"]);
        let revision = fields.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap();
        etcd.ctl(&["compact", revision]);
        proxy.refuse(false);
        let grant = until_granted_or_gone(&far, &waiter);
        if let Some(grant) = grant {
            assert!(grant.token > first.token);
        }
    }
}

/// The wait may have lost its place with its lease: then the next claim gets in.
fn until_granted_or_gone(store: &EtcdStore, claim: &Claim) -> Option<leasehold_core::Grant> {
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        match renewed(store, claim) {
            Renewed::Granted(grant) => return Some(grant),
            Renewed::Gone(Ended::Expired) => return None,
            Renewed::Waiting(_) => {}
            Renewed::Unknown(error) => assert!(error.kind().is_transient(), "{error}"),
            other => panic!("{other:?}"),
        }
    }
    panic!("no word of {:?}", claim.resource);
}

#[test]
fn withheld_words_do_not_hang_a_waiter() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.addr());
    let near = common::client(common::config(etcd.port(), ""));
    let far = common::client(common::config(proxy.port(), ""));
    let held = block_on(near.lock("r").ttl(Duration::from_secs(60)).acquire()).unwrap();
    let waiting = std::thread::spawn(move || {
        let lease = block_on(far.lock("r").ttl(Duration::from_secs(30)).acquire()).unwrap();
        common::released(lease);
    });
    let waits = || {
        let keys = etcd.ctl(&["get", "--prefix", "--keys-only", "r/"]);
        let there = keys.lines().filter(|key| !key.is_empty()).count();
        if there == 2 { Ok(()) } else { Err(format!("{there} stand there")) }
    };
    wait_until("it waits", Duration::from_secs(30), waits);
    // Events of watches hold a delete of this key; they never arrive.
    proxy.on_chunk(|way, _, bytes| {
        let delete = bytes.windows(3).any(|part| part == [0x08, 0x01, 0x12]);
        match (way, delete) {
            (leasehold_testkit::proxy::Way::ToClient, true) => {
                leasehold_testkit::proxy::Verdict::Hold
            }
            _ => leasehold_testkit::proxy::Verdict::Pass,
        }
    });
    common::released(held);
    waiting.join().unwrap();
}

#[test]
fn a_dead_holder_and_a_dead_waiter_leave_nothing() {
    let etcd = Etcd::start();
    let config = || common::config(etcd.port(), "");
    let (dies, lives) = (common::connect(config()), common::connect(config()));
    let (held, waiter, next) = (claim("r"), claim("r"), claim("r"));
    let first = granted(&dies, &held);
    waits(&dies, &waiter);
    waits(&lives, &next);
    drop(dies); // as a process that is killed: without a word
    let grant = until_pushed(&lives, &next);
    assert!(grant.token > first.token);
    assert_eq!(grant.previous, leasehold_core::Previous::Ended(Ended::Expired));
    block_on(lives.leave(&next.to_ref())).unwrap();
    common::until_no_claim(&etcd, "r");
    drop(lives);
    common::until_no_lease(&etcd);
}

#[test]
fn an_enter_that_arrives_after_its_leave_makes_no_ghost() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.addr());
    let store = Arc::new(common::connect(common::config(proxy.port(), "")));
    let other = common::connect(common::config(etcd.port(), ""));
    let warm = claim("warm");
    granted(&store, &warm); // its leases are there
    proxy.pause_to_server(true);
    let late = claim("r");
    let entering = std::thread::spawn({
        let (store, late) = (Arc::clone(&store), late.clone());
        move || block_on(store.enter(&late))
    });
    wait_until("it is sent", Duration::from_secs(10), || {
        if entering.is_finished() { Err("it was answered".into()) } else { Ok(()) }
    });
    std::thread::sleep(Duration::from_millis(200)); // until the bytes are with the proxy
    let mut named = late.to_ref();
    named.enter_unanswered = true;
    block_on(other.leave(&named)).unwrap();
    proxy.pause_to_server(false);
    match entering.join().unwrap() {
        Ok(Admission::Gone(_)) => {}
        Err(error) => assert!(error.kind().is_transient(), "{error}"),
        Ok(other) => panic!("a ghost: {other:?}"),
    }
    granted(&other, &claim("r"));
}

#[test]
fn a_dropped_wait_withdraws_and_a_thousand_leases_are_one() {
    let etcd = Etcd::start();
    let client = common::client(common::config(etcd.port(), ""));
    let ttl = Duration::from_secs(3);
    let leases: Vec<_> = (0..1000)
        .map(|n| block_on(client.lock(&format!("many{n}")).ttl(ttl).acquire()).unwrap())
        .collect();
    let count = etcd.ctl(&["lease", "list"]).lines().count() - 1;
    assert!(count <= 2, "{count} leases stand for a thousand");
    let puts = || etcd.metric("etcd_mvcc_put_total").unwrap();
    let before = puts();
    std::thread::sleep(ttl * 2);
    assert!(leases.iter().all(|lease| matches!(lease.state(), leasehold::State::Held)));
    assert!(puts() - before < 10.0, "renewing writes nothing");
    let dropped = block_on(async {
        let waiting = client.lock("many0").acquire();
        futures_lite::future::poll_once(waiting).await.is_none()
    });
    assert!(dropped);
    leases.into_iter().for_each(common::released);
    common::until_no_claim(&etcd, "many");
    assert_eq!(block_on(client.close(Duration::from_secs(10))), leasehold::Closed::Clean);
    common::until_no_lease(&etcd);
}
