//! Locks that `leasehold run` shares with programs of other languages.

use std::fs;
use std::process::Stdio;

use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::etcd::Etcd;
use leasehold_testkit::server::redis::Redis;
use leasehold_testkit::server::zookeeper::Zookeeper;

use crate::world::{World, eventually, start};

/// What one of them is told to take and to give back the lock, and what it says when it has it.
struct Turn<'a> {
    lock: &'a str,
    has_it: &'a str,
    unlock: &'a str,
}

fn takes_turns(store: String, foreign: &mut Foreign, turn: &Turn<'_>) {
    let world = World::with(&[("LEASEHOLD_STORE", store)]);
    let script = "until test -e go; do sleep 0.01; done; echo $LEASEHOLD_TOKEN >first";
    let ours = world.start("run nightly --", &["sh", "-c", script]);
    world.held("nightly");
    let theirs = foreign.send("ann", turn.lock);
    world.run("run nightly --no-wait -- touch never", &[]).ended(75);
    assert_eq!(foreign.answered(theirs), None, "it has it beside ours");
    fs::write(world.path("go"), "").unwrap();
    ours.finish().ended(0);
    assert!(foreign.result(theirs).text.starts_with(turn.has_it));

    world.run("run nightly --no-wait -- touch never", &[]).ended(75);
    let shown = world.run("show nightly", &[]).ended(0);
    assert!(shown.out.contains("held by"), "{shown:?}");
    let waits = world.start("run nightly --", &["sh", "-c", "echo $LEASEHOLD_TOKEN >second"]);
    world.waiters("nightly", 1);
    assert!(!crate::world::exists(&world.path("second")));
    foreign.call("ann", turn.unlock);
    waits.finish().ended(0);
    assert!(!crate::world::exists(&world.path("never")));
    let token = |name| world.line(name).parse::<u64>().unwrap();
    assert!(token("first") < token("second"));
}

#[test]
fn redisson_takes_turns_with_us() {
    let redis = Redis::start();
    let mut java = Foreign::redisson(&format!("redis://{}", redis.addr()), &[]);
    let turn = Turn { lock: "lock nightly", has_it: "locked", unlock: "unlock nightly" };
    takes_turns(format!("redis://{}", redis.addr()), &mut java, &turn);
    let turn =
        Turn { lock: "fenced.lock nightly", has_it: "locked", unlock: "fenced.unlock nightly" };
    takes_turns(format!("redis://{}", redis.addr()), &mut java, &turn);
}

#[test]
fn redis_py_takes_turns_with_us_in_the_plain_layout() {
    let redis = Redis::start();
    let mut python = Foreign::redis_py(&format!("redis://{}", redis.addr()), &[]);
    let turn = Turn { lock: "lock nightly 30000", has_it: "locked", unlock: "unlock nightly" };
    takes_turns(format!("redis://{}?layout=plain", redis.addr()), &mut python, &turn);
}

#[test]
fn curator_takes_turns_with_us() {
    let zookeeper = Zookeeper::start();
    let mut java = Foreign::curator(&zookeeper.addr().to_string(), &[]);
    let turn = Turn {
        lock: "mutex.acquire /locks/nightly",
        has_it: "acquired",
        unlock: "mutex.release /locks/nightly",
    };
    takes_turns(format!("zk://{}/locks", zookeeper.addr()), &mut java, &turn);
}

#[test]
fn a_go_program_and_etcdctl_take_turns_with_us() {
    let etcd = Etcd::start();
    let mut go = Foreign::etcd(&etcd.addr().to_string(), &[]);
    let turn = Turn { lock: "lock nightly", has_it: "locked", unlock: "unlock nightly" };
    takes_turns(format!("etcd://{}", etcd.addr()), &mut go, &turn);

    let world = World::with(&[("LEASEHOLD_STORE", format!("etcd://{}", etcd.addr()))]);
    let mut ctl = etcd.command();
    let script = "echo $ETCD_LOCK_REV >rev; until test -e go; do sleep 0.01; done";
    ctl.args(["lock", "nightly", "--", "sh", "-c", script]).current_dir(world.path(""));
    let ctl = start({
        ctl.stdin(Stdio::null());
        ctl
    });
    let theirs: u64 = world.line("rev").parse().unwrap();
    world.run("run nightly --no-wait -- true", &[]).ended(75);
    let ours = world.start("run nightly --", &["sh", "-c", "echo $LEASEHOLD_TOKEN >token"]);
    eventually("it waits", || {
        let shown = world.shown("nightly");
        (!shown["waiters"].as_array().unwrap().is_empty()).then_some(())
    });
    fs::write(world.path("go"), "").unwrap();
    ctl.finish().ended(0);
    ours.finish().ended(0);
    assert!(theirs < world.line("token").parse().unwrap(), "tokens rise across programs");
}
