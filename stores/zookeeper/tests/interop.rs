//! One lock with Curator and with kazoo, in both directions.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{config, connect, granted, leaves, root, server, until_granted, waits};
use leasehold_core::{Claim, Mode, Store as _};
use leasehold_testkit::block_on;
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::wait_until;
use leasehold_testkit::server::zookeeper::Release;
use leasehold_zookeeper::{Layout, ZookeeperStore};

const RELEASE: Release = Release::Newest;
const PATIENCE: Duration = Duration::from_secs(60);

/// With a term that does not end within a test.
fn claim(resource: &str) -> Claim {
    Claim { term: PATIENCE, ..common::claim(resource) }
}

fn hosts() -> String {
    server(RELEASE).addr().to_string()
}

fn store(root: &str, layout: Layout) -> ZookeeperStore {
    let mut config = config(server(RELEASE).addr(), root);
    config.layout = layout;
    config.session = Duration::from_secs(60);
    connect(config)
}

/// Waits until so many stand in the queue.
fn queued(store: &ZookeeperStore, name: &Claim, count: usize) {
    wait_until("queued", PATIENCE, || {
        let queue = block_on(store.inspect(&name.resource)).unwrap();
        let there = queue.entries.len();
        if there == count { Ok(()) } else { Err(format!("{queue:?}")) }
    });
}

/// Theirs waits for ours, and ours for theirs; each is let in when the other has gone.
fn in_turn(foreign: &mut Foreign, kind: &str, root: &str, layout: Layout) {
    let store = store(root, layout);
    let path = format!("/{root}/r");
    for _ in 0..3 {
        let ours = claim("r");
        until_granted(&store, &ours);
        let theirs = foreign.send("ann", &format!("{kind}.acquire {path}"));
        queued(&store, &ours, 2);
        assert_eq!(foreign.answered(theirs), None, "both hold");
        let ours_next = claim("r");
        waits(&store, &ours_next);
        leaves(&store, &ours);
        assert_eq!(foreign.result(theirs).text, "acquired");
        let still = waits(&store, &ours_next);
        assert!(still.ahead.is_some());
        assert!(
            foreign.call("ann", &format!("{kind}.release {path}")).text.starts_with("released")
        );
        until_granted(&store, &ours_next);
        leaves(&store, &ours_next);
    }
}

#[test]
fn curators_mutex_and_ours_take_turns() {
    let mut java = Foreign::curator(&hosts(), &["session=10000"]);
    in_turn(&mut java, "mutex", &root(), Layout::Mutex);
}

#[test]
fn curators_writer_and_ours_take_turns() {
    let mut java = Foreign::curator(&hosts(), &["session=10000"]);
    in_turn(&mut java, "write", &root(), Layout::ReadWrite);
}

#[test]
fn an_older_curator_and_ours_take_turns() {
    let mut java = Foreign::system_curator(&hosts(), &["session=10000"]);
    in_turn(&mut java, "mutex", &root(), Layout::Mutex);
    in_turn(&mut java, "write", &root(), Layout::ReadWrite);
}

#[test]
fn kazoo_with_curators_names_and_ours_take_turns() {
    let mut python = Foreign::kazoo(&hosts(), &["session=10000"]);
    in_turn(&mut python, "mutex", &root(), Layout::Mutex);
    in_turn(&mut python, "c-write", &root(), Layout::ReadWrite);
}

#[test]
fn readers_of_all_hold_together_and_writers_of_all_wait() {
    let root = root();
    let store = store(&root, Layout::ReadWrite);
    let path = format!("/{root}/r");
    let mut java = Foreign::curator(&hosts(), &["session=10000"]);
    let mut python = Foreign::kazoo(&hosts(), &["session=10000"]);
    let reader = Claim { mode: Mode::Shared, ..claim("r") };
    granted(&store, &reader);
    assert_eq!(java.call("ann", &format!("read.acquire {path} 20000")).text, "acquired");
    assert_eq!(python.call("ben", &format!("c-read.acquire {path} 20000")).text, "acquired");
    let writing = java.send("eve", &format!("write.acquire {path}"));
    queued(&store, &reader, 4);
    let late = Claim { mode: Mode::Shared, ..claim("r") };
    assert_eq!(waits(&store, &late).ahead, Some(4), "it passes no writer");
    leaves(&store, &reader);
    java.call("ann", &format!("read.release {path}"));
    assert_eq!(java.answered(writing), None, "a reader is left");
    python.call("ben", &format!("c-read.release {path}"));
    assert_eq!(java.result(writing).text, "acquired");
    waits(&store, &late);
    java.call("eve", &format!("write.release {path}"));
    until_granted(&store, &late);
}

#[test]
fn a_shared_claim_keeps_curators_mutex_out() {
    let root = root();
    let store = store(&root, Layout::Mutex);
    let mut java = Foreign::curator(&hosts(), &["session=10000"]);
    let readers = [(); 2].map(|()| Claim { mode: Mode::Shared, ..claim("r") });
    readers.iter().for_each(|reader| drop(granted(&store, reader)));
    let theirs = java.send("ann", &format!("mutex.acquire /{root}/r"));
    queued(&store, &readers[0], 3);
    leaves(&store, &readers[0]);
    assert_eq!(java.answered(theirs), None, "a reader is left");
    leaves(&store, &readers[1]);
    assert_eq!(java.result(theirs).text, "acquired");
}

#[test]
fn kazoos_own_naming_is_waited_for_by_us() {
    let root = root();
    let store = store(&root, Layout::Mutex);
    let path = format!("/{root}/r");
    let mut python = Foreign::kazoo(&hosts(), &["session=10000"]);
    assert_eq!(python.call("ann", &format!("lock.acquire {path}")).text, "acquired");
    let ours = claim("r");
    waits(&store, &ours);
    python.call("ann", &format!("lock.release {path}"));
    until_granted(&store, &ours);
}

/// Under contention of all three no two are ever inside.
#[test]
fn nobody_is_ever_inside_with_another() {
    let root = root();
    let path = format!("/{root}/r");
    let inside = Arc::new(AtomicU32::new(0));
    let mut threads = Vec::new();
    for n in 0..3 {
        let (inside, root, path) = (Arc::clone(&inside), root.clone(), path.clone());
        threads.push(std::thread::spawn(move || {
            let mut foreign = match n {
                0 => Some(Foreign::curator(&hosts(), &["session=10000"])),
                1 => Some(Foreign::kazoo(&hosts(), &["session=10000"])),
                _ => None,
            };
            let store = store(&root, Layout::Mutex);
            for _ in 0..20 {
                let ours = claim("r");
                match &mut foreign {
                    Some(foreign) => {
                        let taken = foreign.call("ann", &format!("mutex.acquire {path}"));
                        assert_eq!(taken.text, "acquired");
                    }
                    None => drop(until_granted(&store, &ours)),
                }
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                std::thread::sleep(Duration::from_millis(2));
                inside.fetch_sub(1, Ordering::SeqCst);
                match &mut foreign {
                    Some(foreign) => drop(foreign.call("ann", &format!("mutex.release {path}"))),
                    None => leaves(&store, &ours),
                }
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}
