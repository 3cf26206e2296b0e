//! Three servers, and what may happen to them.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{claim, config, connect, granted, now, renew, until_granted, waits};
use leasehold_core::{Claim, ErrorKind, Mode, Renewed, Store};
use leasehold_net::HostPort;
use leasehold_testkit::block_on;
use leasehold_testkit::contest::{Wish, contender, judge, recorder};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::wait_until;
use leasehold_testkit::server::zookeeper::{Ensemble, Options, Release};
use leasehold_zookeeper::{ZookeeperConfig, ZookeeperStore};

fn all(ensemble: &Ensemble, root: &str) -> ZookeeperConfig {
    let mut all = config(ensemble.members()[0].addr(), root);
    all.hosts = ensemble
        .members()
        .iter()
        .map(|member| HostPort { host: "127.0.0.1".into(), port: Some(member.addr().port()) })
        .collect();
    all
}

const TERM: Duration = Duration::from_secs(3);

fn contest(release: Release, hurt: impl Fn(&Ensemble)) {
    let ensemble = Ensemble::with(3, &Options { release, ..Options::default() });
    let recorder = recorder();
    let wish = Wish {
        claim: common::claim,
        names: ["a", "b"].map(String::from).into(),
        modes: vec![Mode::Exclusive, Mode::Exclusive, Mode::Shared],
        term: TERM,
        hold: Duration::from_millis(30),
        rounds: 40,
    };
    let contenders: Vec<_> = (0..5)
        .map(|client| {
            let store: Arc<dyn Store> = Arc::new(connect(all(&ensemble, "contest")));
            contender(&recorder, client, store, wish.clone())
        })
        .collect();
    hurt(&ensemble);
    for contender in contenders {
        contender.join().unwrap();
    }
    judge(&recorder);
}

#[test]
fn exclusion_and_order_survive_a_killed_leader() {
    contest(Release::Newest, |ensemble| {
        let leader = ensemble.leader();
        leader.server().kill9();
        ensemble.wait(2);
        leader.server().start_again();
        ensemble.wait(3);
        ensemble.follower().server().kill9();
    });
}

#[test]
fn exclusion_and_order_survive_stopped_servers() {
    contest(Release::System, |ensemble| {
        let leader = ensemble.leader();
        leader.server().stop();
        wait_until("another leader", Duration::from_secs(60), || {
            let others = ensemble.members().iter().filter(|m| m.addr() != leader.addr());
            let leads = others.filter_map(|m| m.mode()).any(|mode| mode == "leader");
            if leads { Ok(()) } else { Err("none yet".into()) }
        });
        leader.server().cont();
        ensemble.wait(3);
        let follower = ensemble.follower();
        follower.server().stop();
        std::thread::sleep(TERM);
        follower.server().cont();
    });
}

#[test]
fn all_servers_restart_and_what_was_held_is_held() {
    let ensemble = Ensemble::with(3, &Options::default());
    let mut long = all(&ensemble, "restart");
    long.session = Duration::from_secs(60);
    let store = connect(long);
    let held = Claim { term: Duration::from_secs(60), ..claim("r") };
    let grant = granted(&store, &held);
    for member in ensemble.members() {
        member.server().kill9();
    }
    let silent = renew(&store, &held);
    assert!(matches!(silent, Renewed::Unknown(_)), "{silent:?}");
    for member in ensemble.members() {
        member.server().start_again();
    }
    ensemble.wait(3);
    wait_until("renewed", Duration::from_secs(60), || match renew(&store, &held) {
        Renewed::Granted(told) if told.token == grant.token => Ok(()),
        Renewed::Unknown(error) if error.kind().is_transient() => Err(error.to_string()),
        other => panic!("{other:?}"),
    });
}

/// A follower answers by itself, and tells the leader only every half tick whom it heard: the
/// leader may so end a session before its timeout is over, as the client counts.
#[test]
fn belief_through_a_follower_that_is_cut_off_ends_before_the_leader_ends_the_session() {
    let tick = Duration::from_secs(1);
    let ensemble = Ensemble::with(3, &Options { tick, ..Options::default() });
    for round in 0..5_u32 {
        // Another leader relays at another point of its ticks.
        let before = ensemble.leader();
        before.server().kill9();
        ensemble.wait(2);
        before.server().start_again();
        ensemble.wait(3);
        let follower = ensemble.follower();
        let mut short = config(follower.addr(), "trap");
        short.session = tick * 2;
        let holder = connect(short);
        let leader = connect(config(ensemble.leader().addr(), "trap"));
        let term = holder.profile().term_bounds.1;
        assert_eq!(term, tick * 2, "the shortest that the servers allow");
        let name = format!("r{round}");
        let (held, next) = (Claim { term, ..claim(&name) }, claim(&name));
        granted(&holder, &held);
        waits(&leader, &next);
        // The leader ends sessions at whole ticks of the machine's clock. What it last heard of lies
        // before this one's begin, if the follower relays later than this.
        let begun = u64::from(leasehold_testkit::process::monotonic().subsec_millis());
        std::thread::sleep(Duration::from_millis(1000 - begun + 200));
        let Renewed::Granted(kept) = renew(&holder, &held) else { panic!("it is held") };
        follower.server().stop();
        until_granted(&leader, &next);
        let at = now();
        follower.server().cont();
        assert!(at >= kept.until, "another was let in {:?} early", kept.until.since(at));
    }
}

/// A follower answers reads by itself until it notices that its leader is gone.
#[test]
fn a_renewal_and_a_check_are_answered_by_the_ensemble_and_not_by_one_follower() {
    let ensemble = Ensemble::with(3, &Options::default());
    let mut long = config(ensemble.follower().addr(), "asked");
    long.session = Duration::from_secs(60);
    let store = connect(long);
    let held = Claim { term: Duration::from_secs(60), ..claim("r") };
    granted(&store, &held);
    let leader = ensemble.leader();
    leader.server().stop();
    let begun = now();
    wait_until("renewed", Duration::from_secs(60), || match renew(&store, &held) {
        Renewed::Granted(_) => Ok(()),
        Renewed::Unknown(error) if error.kind().is_transient() => Err(error.to_string()),
        other => panic!("{other:?}"),
    });
    // Another leads by now: which takes longer than a follower needs to answer.
    let others = ensemble.members().iter().filter(|member| member.addr() != leader.addr());
    let leads = others.filter_map(|m| m.mode()).any(|mode| mode == "leader");
    assert!(leads, "nobody leads, and it was renewed after {:?}", now().since(begun));
    assert!(block_on(store.check(&held.to_ref())).unwrap());
    leader.server().cont();
}

#[test]
fn a_client_cut_from_all_but_one_follower_goes_on_and_one_cut_from_all_is_believed_in_time() {
    let ensemble = Ensemble::with(3, &Options::default());
    let proxies: Vec<Proxy> =
        ensemble.members().iter().map(|member| Proxy::start(member.addr())).collect();
    let mut through = all(&ensemble, "cut");
    through.hosts = proxies
        .iter()
        .map(|proxy| HostPort { host: "127.0.0.1".into(), port: Some(proxy.port()) })
        .collect();
    let holder = connect(through);
    let other = connect(all(&ensemble, "cut"));
    let term = holder.profile().term_bounds.1;
    let (held, next) = (Claim { term, ..claim("r") }, claim("r"));
    granted(&holder, &held);
    waits(&other, &next);
    for hole in 0..3 {
        for (n, proxy) in proxies.iter().enumerate() {
            if n == hole { proxy.resume() } else { proxy.pause() }
        }
        wait_until("renewed", Duration::from_secs(60), || match renew(&holder, &held) {
            Renewed::Granted(_) => Ok(()),
            Renewed::Unknown(error) if error.kind().is_transient() => Err(error.to_string()),
            other => panic!("{other:?}"),
        });
    }
    let Renewed::Granted(kept) = renew(&holder, &held) else { panic!("it is held") };
    proxies.iter().for_each(Proxy::pause);
    until_granted(&other, &next);
    assert!(now() >= kept.until);
}

#[test]
fn without_a_quorum_the_error_says_so_and_with_one_again_the_wait_goes_on() {
    let ensemble = Ensemble::with(3, &Options::default());
    let mut long = all(&ensemble, "quorum");
    long.session = Duration::from_secs(60);
    let store = connect(long.clone());
    let (held, next) = (claim("r"), claim("r"));
    granted(&store, &held);
    waits(&store, &next);
    for member in &ensemble.members()[..2] {
        member.server().kill9();
    }
    long.connect_within = Duration::from_secs(3);
    let error = block_on(ZookeeperStore::connect(long)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("quorum"), "{error}");
    let error = block_on(store.enter(&claim("other"))).unwrap_err();
    assert!(error.kind().is_transient(), "{error}");
    for member in &ensemble.members()[..2] {
        member.server().start_again();
    }
    ensemble.wait(3);
    wait_until("left", Duration::from_secs(60), || {
        block_on(store.leave(&held.to_ref())).map(drop).map_err(|e| e.to_string())
    });
    until_granted(&store, &next);
}
