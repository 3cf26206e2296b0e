//! Waiting for replicas and for the disk.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold_core::{Applied, ErrorKind};
use leasehold_testkit::server::redis::{Options, Redis, versions};
use leasehold_testkit::server::wait_until;

use super::super::Durability;
use super::{INCREMENT, connect, run, single};

fn with_replica() -> (Redis, Redis) {
    let master = Redis::start();
    master.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let replica_of = Some(master.port());
    let replica = Redis::with(Options { replica_of, ..Options::default() });
    wait_until("the replica to be in touch", Duration::from_secs(60), || {
        let told = master.cli(&["INFO", "replication"]);
        if told.contains("state=online") { Ok(()) } else { Err(told) }
    });
    (master, replica)
}

fn at_replicas(replicas: u32, within_ms: u64) -> Durability {
    Durability { replicas, fsync: false, within: Duration::from_millis(within_ms) }
}

#[test]
fn what_was_confirmed_is_at_the_replica() {
    let (master, replica) = with_replica();
    run(async {
        let link = connect(single(master.addr())).await.unwrap();
        let (answer, reached) =
            link.call_durably(&INCREMENT, &[b"n"], &[], at_replicas(1, 20_000)).await.unwrap();
        assert_eq!((answer.reply.int().unwrap(), reached.replicas), (1, 1));
        assert_eq!(replica.cli(&["GET", "n"]), "1");
    });
}

#[test]
fn those_who_come_together_share_a_wait() {
    let (master, replica) = with_replica();
    run(async {
        let link = connect(single(master.addr())).await.unwrap();
        link.call_durably(&INCREMENT, &[b"n"], &[], at_replicas(1, 20_000)).await.unwrap();
        master.cli(&["CONFIG", "RESETSTAT"]);
        let calls =
            (0..64).map(|_| link.call_durably(&INCREMENT, &[b"n"], &[], at_replicas(1, 20_000)));
        let answers = join_all(calls).await;
        assert!(answers.into_iter().all(|answer| answer.unwrap().1.replicas == 1));
        let stats = master.cli(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_wait:")).unwrap();
        let calls = line.split(['=', ',']).nth(1).unwrap().parse::<u32>().unwrap();
        assert!(calls <= 3, "{line}");
        assert_eq!(replica.cli(&["GET", "n"]), "65");
    });
}

#[test]
fn what_is_not_reached_in_time_is_told_and_was_done() {
    let (master, replica) = with_replica();
    run(async {
        let link = connect(single(master.addr())).await.unwrap();
        replica.server().stop();
        let (answer, reached) =
            link.call_durably(&INCREMENT, &[b"n"], &[], at_replicas(1, 100)).await.unwrap();
        assert_eq!((answer.reply.int().unwrap(), reached.replicas), (1, 0));
        assert_eq!(master.cli(&["GET", "n"]), "1");
    });
}

#[test]
fn a_wait_for_the_disk_needs_a_server_that_has_one() {
    let fsync = Durability { replicas: 0, fsync: true, within: Duration::from_secs(20) };
    let newest = versions().pop().unwrap();
    assert!(newest.version >= (7, 2, 0));
    let args = vec!["--appendonly".into(), "yes".into()];
    let server = Redis::with(Options { binary: Some(newest.path), args, ..Options::default() });
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let (_, reached) = link.call_durably(&INCREMENT, &[b"n"], &[], fsync).await.unwrap();
        assert!(reached.fsynced);
        server.cli(&["CONFIG", "SET", "appendonly", "no"]);
        let error = link.call_durably(&INCREMENT, &[b"n"], &[], fsync).await.unwrap_err();
        // The script itself was done.
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Config, Applied::Maybe));
        assert!(error.advice().is_some(), "{error}");
    });
    let old = versions().into_iter().find(|old| old.version < (7, 2, 0)).unwrap();
    let server = Redis::with(Options { binary: Some(old.path), ..Options::default() });
    run(async {
        let link = connect(single(server.addr())).await.unwrap();
        let error = link.call_durably(&INCREMENT, &[b"n"], &[], fsync).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    });
}
