//! The same locks as Go's `concurrency` package, `etcdctl lock` and the server's lock service.
#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold::AcquireError;
use leasehold_core::{Broken, ErrorKind, QueueState};
use leasehold_etcd::Names;
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::etcd::{Etcd, Options, Release};
use leasehold_testkit::server::wait_until;

const SHORT: Duration = Duration::from_secs(2);

fn go(etcd: &Etcd) -> Foreign {
    Foreign::etcd(&etcd.addr().to_string(), &["ttl=3"])
}

/// `etcdctl lock`, which runs a command that tells the token.
fn etcdctl(etcd: &Etcd, name: &str) -> Command {
    let mut command = etcd.command();
    command.args(["lock", "--ttl", "3", name, "--", "sh", "-c", "echo token $ETCD_LOCK_REV"]);
    command.stdout(Stdio::piped());
    command
}

fn contenders(etcd: &Etcd, name: &str) -> usize {
    let keys = etcd.ctl(&["get", "--prefix", "--keys-only", &format!("{name}/")]);
    keys.lines().filter(|key| !key.is_empty()).count()
}

fn until_contenders(etcd: &Etcd, name: &str, count: usize) {
    wait_until("they stand in the queue", Duration::from_secs(30), || {
        let there = contenders(etcd, name);
        if there == count { Ok(()) } else { Err(format!("{there} of {count}")) }
    });
}

#[test]
fn we_a_go_program_and_etcdctl_take_turns_and_tokens_rise() {
    for release in Release::ALL {
        let etcd = Etcd::with(Options { release, ..Options::default() });
        let client = common::client(common::config(etcd.port(), ""));
        let mut go = go(&etcd);
        let first = block_on(client.lock("nightly").ttl(SHORT).acquire()).unwrap();
        let waiting = go.send("ann", "lock nightly");
        until_contenders(&etcd, "nightly", 2);
        let shell = etcdctl(&etcd, "nightly").spawn().unwrap();
        until_contenders(&etcd, "nightly", 3);
        let again = client.lock("nightly").ttl(SHORT).acquire();
        let (last, told) = block_on(async {
            let again = std::pin::pin!(again);
            let turns = async {
                blocking(|| until_contenders(&etcd, "nightly", 4)).await;
                assert_eq!(go.answered(waiting), None, "nobody passes us");
                assert!(matches!(first.release().await, leasehold::Release::Released));
                assert!(go.result(waiting).text.starts_with("locked nightly/"));
                assert_eq!(go.call("ann", "unlock nightly").text, "unlocked");
                let output = blocking(move || shell.wait_with_output().unwrap()).await;
                String::from_utf8(output.stdout).unwrap()
            };
            futures_lite::future::zip(again, turns).await
        });
        let last = last.unwrap();
        let told: u64 = told.trim().strip_prefix("token ").unwrap().parse().unwrap();
        assert!(last.token().get() > told, "{} after {told}", last.token());
        assert!(matches!(
            block_on(client.lock("nightly").no_wait().acquire()),
            Err(AcquireError::Busy(_))
        ));
        assert!(go.call("ben", "trylock nightly").text.starts_with("refused"));
        common::released(last);
        assert!(go.call("ben", "trylock nightly").text.starts_with("locked"));
        assert_eq!(block_on(client.close(Duration::from_secs(5))), leasehold::Closed::Clean);
    }
}

/// Runs what blocks on a thread of its own.
async fn blocking<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

#[test]
fn we_wait_for_the_lock_service_and_it_for_us() {
    let etcd = Etcd::with(Options { release: Release::Newest, ..Options::default() });
    let client = common::client(common::config(etcd.port(), ""));
    let mut go = go(&etcd);
    let locked = go.call("ann", "server.lock a");
    assert!(!locked.text.starts_with("error"), "{locked:?}");
    let refused = block_on(client.lock("a").wait(Duration::from_millis(300)).acquire());
    let Err(AcquireError::TimedOut(busy)) = refused else { panic!("{refused:?}") };
    assert!(busy.holder.unwrap().label.starts_with("etcd session "));
    assert_eq!(go.call("ann", "server.unlock a").text, "unlocked");
    let held = block_on(client.lock("a").acquire()).unwrap();
    let waiting = go.send("ben", "server.lock a");
    until_contenders(&etcd, "a", 2);
    assert_eq!(go.answered(waiting), None);
    common::released(held);
    assert!(!go.result(waiting).text.starts_with("error"));
    common::until_no_lease_but(&etcd, "a");
}

#[test]
fn a_foreign_mutex_waits_for_every_reader_and_permit() {
    let etcd = common::server(Release::Newest);
    let prefix = common::fresh_prefix();
    let mut config = common::config(etcd.port(), "");
    config.names = Names::Raw;
    let client = common::client(config);
    let mut go = go(etcd);
    let name = format!("{prefix}shared");
    let readers: Vec<_> = (0..2)
        .map(|_| block_on(client.lock(&name).shared().ttl(SHORT).acquire()).unwrap())
        .collect();
    let waiting = go.send("ann", &format!("lock {name}"));
    until_contenders(etcd, &name, 3);
    let behind = block_on(client.lock(&name).shared().no_wait().acquire());
    assert!(matches!(behind, Err(AcquireError::Busy(_))), "a reader does not pass it: {behind:?}");
    for reader in readers {
        assert_eq!(go.answered(waiting), None);
        common::released(reader);
    }
    assert!(go.result(waiting).text.starts_with("locked"));
    go.call("ann", &format!("unlock {name}"));
    let name = format!("{prefix}permits");
    let two = block_on(client.lock(&name).permits(1, 2).ttl(SHORT).acquire()).unwrap();
    assert_eq!(go.call("ann", &format!("trylock {name}")).text, "refused");
    common::released(two);
    assert!(go.call("ann", &format!("trylock {name}")).text.starts_with("locked"));
    let busy = block_on(client.lock(&name).permits(1, 2).no_wait().acquire());
    assert!(matches!(busy, Err(AcquireError::Busy(_))), "it is exclusive to us: {busy:?}");
}

#[test]
fn a_dead_go_holder_frees_with_its_lease_and_ours_frees_for_go() {
    let etcd = common::server(Release::Newest);
    let client = common::client(common::config(etcd.port(), ""));
    let name = common::fresh_prefix().replace('/', "");
    let mut go = go(etcd);
    assert!(go.call("ann", &format!("lock {name}")).text.starts_with("locked"));
    go.process().kill9().unwrap();
    let lease = block_on(client.lock(&name).ttl(SHORT).acquire()).unwrap();
    let mut go = Foreign::etcd(&etcd.addr().to_string(), &["ttl=3"]);
    let waiting = go.send("ben", &format!("lock {name}"));
    until_contenders(etcd, &name, 2);
    common::released(lease);
    assert!(go.result(waiting).text.starts_with("locked"));
}

#[test]
fn what_blocks_is_named() {
    let etcd = common::server(Release::System);
    let mut config = common::config(etcd.port(), "");
    config.names = Names::Raw;
    let client = common::client(config);
    let prefix = common::fresh_prefix();
    let mut go = go(etcd);
    go.call("ann", &format!("lock {prefix}nested/in/it"));
    etcd.ctl(&["put", &format!("{prefix}stray/x"), "hello"]);
    let grant = etcd.ctl(&["lease", "grant", "600"]);
    let lease = grant.split_whitespace().nth(1).unwrap();
    etcd.ctl(&["put", &format!("--lease={lease}"), &format!("{prefix}layout/host-7"), "v"]);
    for (name, part) in [
        ("nested", "key of the nested name `…/in/it`"),
        ("stray", "stray key `x` without a lease"),
        ("layout", "key `host-7` of a foreign layout"),
    ] {
        let name = format!("{prefix}{name}");
        let busy = block_on(client.lock(&name).no_wait().acquire());
        let Err(AcquireError::Busy(busy)) = busy else { panic!("{busy:?}") };
        assert!(busy.holder.unwrap().label.contains(part), "{name}");
        let queue = block_on(client.inspect(&name)).unwrap();
        assert!(queue.entries[0].holder.label().contains(part), "{queue:?}");
        assert!(matches!(queue.entries[0].state, QueueState::Granted { .. }));
    }
}

#[test]
fn a_foreign_grant_is_broken_at_once_or_not_at_all() {
    let etcd = common::server(Release::System);
    let client = common::client(common::config(etcd.port(), ""));
    let name = common::fresh_prefix().replace('/', "");
    let mut go = go(etcd);
    go.call("ann", &format!("lock {name}"));
    let refused = block_on(client.break_(&name, None, false)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("etcd session"), "{refused}");
    let broken = block_on(client.break_(&name, None, true)).unwrap();
    let Broken::Marked(tokens) = broken else { panic!("{broken:?}") };
    let lease = block_on(client.lock(&name).no_wait().acquire()).unwrap();
    assert!(lease.token() > tokens[0]);
    common::released(lease);
}
