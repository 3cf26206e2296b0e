//! The fence in etcd: what is written late is refused, whoever believes what.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use futures_lite::future::block_on;
use leasehold_core::{Access, Mark, Store, Token};
use leasehold_etcd::EtcdStore;
use leasehold_etcd::raw::{Raw, RawCompare, RawOp};
use leasehold_fence::Resource;
use leasehold_fence::etcd::{Compare, Fence, Guard, IsIt, Op, created_at, held};
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::etcd::Release;

fn compared(compare: Compare) -> RawCompare {
    let Compare { key, range_end, revision, is_it } = compare;
    RawCompare { key, range_end, revision, equal: is_it == IsIt::Equal }
}

fn op(op: Op) -> RawOp {
    match op {
        Op::Put { key, value } => RawOp::Put(key, value, 0),
        Op::Delete { key, range_end } => RawOp::DeleteRange(key, range_end),
        Op::Keys { key, range_end } => RawOp::Range(key, range_end),
    }
}

fn run(raw: &Raw, guard: Guard) -> (bool, Vec<Vec<u8>>) {
    let Guard { compare, success, failure } = guard;
    let compare = compare.into_iter().map(compared).collect();
    let ops = |ops: Vec<Op>| ops.into_iter().map(op).collect();
    block_on(raw.txn(compare, ops(success), ops(failure))).unwrap()
}

fn put(key: &str, value: &str) -> Op {
    Op::Put { key: key.as_bytes().to_vec(), value: value.as_bytes().to_vec() }
}

#[test]
fn a_late_write_is_refused_by_the_marks() {
    for release in Release::ALL {
        let etcd = common::server(release);
        let prefix = common::fresh_prefix();
        let client = common::client(common::config(etcd.port(), &prefix));
        let raw = Raw::new(&common::config(etcd.port(), "")).unwrap();
        let fence = Fence::new(&prefix, &Resource::new("account/7").unwrap());
        let balance = format!("{prefix}balance");
        let write = |mark: Mark, value: &str| {
            let mut guard = fence.enter(Access::Exclusive, mark);
            guard.success.push(put(&balance, value));
            run(&raw, guard)
        };
        let old = block_on(client.lock("account/7").acquire()).unwrap();
        assert!(write(old.mark(), "100").0);
        assert!(write(old.mark(), "90").0, "the same mark passes again");
        block_on(client.break_("account/7", None, true)).unwrap();
        let new = block_on(client.lock("account/7").acquire()).unwrap();
        // It enters before its first read: from now on the old one is refused.
        assert!(run(&raw, fence.enter(Access::Exclusive, new.mark())).0);
        let (late, keys) = write(old.mark(), "80");
        assert!(!late);
        let found = keys.iter().map(Vec::as_slice);
        let refused = fence.refusal(Access::Exclusive, old.mark(), found);
        assert_eq!(refused.stale_mark().unwrap().newest, new.mark());
        assert_eq!(etcd.ctl(&["get", "--print-value-only", &balance]), "90");
        assert!(run(&raw, fence.guard(Access::Exclusive, new.mark())).0);
        let reader = Mark::from(Token::new(new.token().get() + 5).unwrap());
        assert!(run(&raw, fence.enter(Access::Shared, reader)).0);
        assert!(!write(new.mark(), "70").0, "a newer reader has been there");
        let marks = etcd.ctl(&["get", "--prefix", "--keys-only", &prefix]);
        let marks = marks.lines().filter(|key| key.contains("-fence/")).count();
        assert_eq!(marks, 2, "older marks are tidied away");
        drop(new);
    }
}

#[test]
fn what_is_in_the_same_cluster_is_guarded_by_the_lock_itself() {
    let etcd = common::server(Release::Newest);
    let prefix = common::fresh_prefix();
    let store = std::sync::Arc::new(common::connect(common::config(etcd.port(), &prefix)));
    let shared: std::sync::Arc<dyn Store> = store.clone();
    let client = leasehold::Client::new(shared, leasehold::Options::default()).unwrap();
    let raw = Raw::new(&common::config(etcd.port(), "")).unwrap();
    let thing = format!("{prefix}thing");
    let write = |store: &EtcdStore, lease: &leasehold::Lease, value: &str| {
        let key = store.claim_key(lease.name(), lease.claim_id()).unwrap();
        let guard =
            Guard { compare: vec![held(key)], success: vec![put(&thing, value)], failure: vec![] };
        run(&raw, guard).0
    };
    let old = block_on(client.lock("r").ttl(Duration::from_secs(30)).acquire()).unwrap();
    assert!(write(&store, &old, "one"));
    block_on(client.break_("r", None, true)).unwrap();
    assert!(!write(&store, &old, "late"), "refused before anybody else has come");
    let new = block_on(client.lock("r").ttl(Duration::from_secs(30)).acquire()).unwrap();
    assert!(write(&store, &new, "two") && !write(&store, &old, "later"));
    assert_eq!(etcd.ctl(&["get", "--print-value-only", &thing]), "two");
    // Go's keys are used again: by their creation.
    let mut go = Foreign::etcd(&etcd.addr().to_string(), &["ttl=5"]);
    let name = format!("{prefix}go");
    let created = |go: &mut Foreign| {
        go.call("ann", &format!("lock {name}"));
        let told = go.call("ann", &format!("key {name}")).text;
        let words: Vec<&str> = told.split(' ').collect();
        created_at(words[1].as_bytes().to_vec(), words[2].parse().unwrap())
    };
    let guard = |compare: Compare| Guard { compare: vec![compare], ..Guard::default() };
    let first = created(&mut go);
    assert!(run(&raw, guard(first.clone())).0);
    go.call("ann", &format!("unlock {name}"));
    let second = created(&mut go);
    assert!(!run(&raw, guard(first)).0 && run(&raw, guard(second)).0);
}
