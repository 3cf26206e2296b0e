//! The driver's thread: there while something is left to be done, and gone with the last of it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::time::Duration;

use common::{Fate, Verb, eventually, faulty};
use futures_lite::future::{block_on, poll_once};
use leasehold::memory::Memory;
use leasehold::{Client, State, blocking};

const SECOND: Duration = Duration::from_secs(1);

fn drivers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "leasehold")
        .count()
}

fn entries(client: &Client, name: &str) -> usize {
    block_on(client.inspect(name)).unwrap().entries.len()
}

/// One test, since it counts the threads of the whole process.
#[test]
fn it_lives_as_long_as_a_lease_and_no_longer() {
    let memory = Memory::new();
    for anywhere in [true, false] {
        let watcher = memory.client().unwrap();
        // A lease alone keeps it.
        let client = faulty(&memory, anywhere, SECOND * 10, |_| Fate::Passes);
        let request = client.lock("r").ttl(Duration::from_millis(500));
        drop(client);
        let lease = blocking::acquire(request).unwrap();
        std::thread::sleep(SECOND);
        assert_eq!((lease.state(), drivers()), (State::Held, 1));
        drop(lease);
        eventually("the driver ends", || drivers() == 0);
        assert_eq!(entries(&watcher, "r"), 0, "but not before it has released");

        // So does a lost one whose claim has still to leave, and a wait that was dropped.
        let client = faulty(&memory, anywhere, SECOND * 10, |verb| match verb {
            Verb::Renew => Fate::Fails,
            _ => Fate::Passes,
        });
        let lease = blocking::acquire(client.lock("r").ttl(SECOND)).unwrap();
        block_on(lease.lost());
        let held = blocking::acquire(watcher.lock("s")).unwrap();
        let mut wait = Box::pin(client.lock("s").wait(SECOND * 3600).acquire());
        while entries(&watcher, "s") < 2 {
            assert!(block_on(poll_once(&mut wait)).is_none());
        }
        let mut turn = Box::pin(client.lock("s").wait(SECOND * 3600).acquire());
        assert!(block_on(poll_once(&mut turn)).is_none());
        // A thread that was just started has no name yet.
        eventually("both have a driver", || drivers() == 2);
        drop((wait, turn, lease, client));
        eventually("the watcher's is left", || drivers() == 1);
        assert_eq!((entries(&watcher, "r"), entries(&watcher, "s")), (0, 1));
        drop(held);
        eventually("released", || entries(&watcher, "s") == 0);

        // Closed twice, at once, with nothing begun, and with something begun.
        let client = faulty(&memory, anywhere, SECOND * 10, |_| Fate::Passes);
        let _ = blocking::close(client.clone(), SECOND);
        let _ = blocking::close(client, SECOND);
        let client = faulty(&memory, anywhere, SECOND * 10, |_| Fate::Passes);
        let _lease = blocking::acquire(client.lock("t")).unwrap();
        eventually("both have a driver", || drivers() == 2);
        let clone = client.clone();
        let other = std::thread::spawn(move || blocking::close(clone, SECOND * 20));
        let _ = blocking::close(client, SECOND * 20);
        let _ = other.join().unwrap();
        eventually("the watcher's is left", || drivers() == 1);
        assert_eq!(entries(&watcher, "t"), 0);
        drop(watcher);
        eventually("nobody's is left", || drivers() == 0);
    }
}
