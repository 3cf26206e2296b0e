//! A master that changes under Sentinels.

use std::time::Duration;

use leasehold_core::ErrorKind;
use leasehold_net::HostPort;
use leasehold_testkit::server::redis::Sentinels;

use super::super::{Cause, Lane, Link, LinkConfig, Shape};
use super::{GET, Heard, INCREMENT, config, connect, host, run, until, until_it_works};

fn watched(all: &Sentinels) -> LinkConfig {
    let sentinels = all.sentinels().iter().map(|sentinel| host(sentinel.addr())).collect();
    of(sentinels, "main")
}

fn of(sentinels: Vec<HostPort>, master: &str) -> LinkConfig {
    let master = master.to_owned();
    config(Shape::Sentinel { sentinels, master, user: None, password: None })
}

async fn counts(link: &Link) -> i64 {
    let call = async || link.call(Lane::Front, &INCREMENT, &[b"n"], &[]).await;
    until_it_works("to call the master", call).await.reply.int().unwrap()
}

#[test]
fn a_failover_is_noticed_at_once_whatever_brings_it() {
    let all = Sentinels::start();
    run(async {
        let link = connect(watched(&all)).await.unwrap();
        let heard = link.listen(b"c").await.unwrap();
        counts(&link).await;
        assert!(all.servers()[all.master()].cli(&["GET", "n"]).parse::<i64>().is_ok());

        // While the master lives: nobody cuts the connections to it but we and the Sentinels.
        let start = link.epoch();
        let before = all.master();
        let now = blocking(|| all.fail_over());
        assert_ne!(now, before);
        until("the failover to be told", || link.cause_since(b"n", start) == Some(Cause::Failover))
            .await;
        counts(&link).await;
        assert_eq!(heard.next().await, Heard::Nudge);
        hears(&all, &heard).await;

        // The master dies, under load.
        let start = link.epoch();
        let before = all.master();
        all.servers()[before].server().kill9();
        link.disturbed(start).await;
        until("the failover to be told", || link.cause_since(b"n", start) == Some(Cause::Failover))
            .await;
        counts(&link).await;
        while heard.next().await != Heard::Nudge {}
        hears(&all, &heard).await;
        let now = blocking(|| all.wait_for_another_than(before));
        let told = all.servers()[now].cli(&["CLIENT", "LIST"]);
        assert!(told.contains("name=leasehold"));
    });
}

#[test]
fn a_master_that_is_cut_off_is_left() {
    let all = Sentinels::start();
    run(async {
        let link = connect(watched(&all)).await.unwrap();
        counts(&link).await;
        let start = link.epoch();
        let before = all.master();
        // Neither the Sentinels nor we hear of it; it lives on.
        all.proxies()[before].pause();
        until("the failover to be told", || link.cause_since(b"n", start) == Some(Cause::Failover))
            .await;
        counts(&link).await;
        let now = blocking(|| all.wait_for_another_than(before));
        let counted = all.servers()[now].cli(&["GET", "n"]);
        assert_eq!(counted, counts(&link).await.checked_sub(1).unwrap().to_string());
        all.proxies()[before].resume();
        until("the old master to be a replica", || {
            all.servers()[before].try_cli(&["ROLE"]).is_ok_and(|role| role.starts_with("slave"))
        })
        .await;
        counts(&link).await;
    });
}

#[test]
fn sentinels_that_are_not_there_or_know_no_such_master_are_told() {
    let all = Sentinels::start();
    run(async {
        all.sentinels()[0].kill9();
        let link = connect(watched(&all)).await.unwrap();
        link.call(Lane::Front, &GET, &[b"n"], &[]).await.unwrap();

        let sentinels: Vec<_> = all.sentinels().iter().map(|s| host(s.addr())).collect();
        let error = connect(of(sentinels.clone(), "nobody")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("nobody") && error.advice().is_some());

        let mut gone = of(sentinels[..1].to_vec(), "main");
        gone.connect_within = Duration::from_millis(200);
        assert_eq!(connect(gone).await.unwrap_err().kind(), ErrorKind::Unreachable);
    });
}

/// What waits in a thread must not hold up the runtime of a link.
fn blocking<T: Send>(step: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(step).join().unwrap())
}

async fn hears(all: &Sentinels, heard: &super::Hearing) {
    // The Sentinels may name the old one for a while.
    let master = || &all.servers()[all.master()];
    let told = || master().try_cli(&["PUBLISH", "c", "1"]).is_ok_and(|heard| heard == "1");
    until("the new master to tell", told).await;
    while heard.next().await != Heard::Message(b"1".to_vec()) {}
}
