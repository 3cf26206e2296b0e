//! The two histories of "How to do distributed locking" (Kleppmann, 2016): what the lock alone
//! does, and what the fence saves.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{Behind, claim, durable, fresh, granted, named, open, renew, start, until_granted};
use leasehold_core::{Access, Clock, Mark, Renewed, Token};
use leasehold_fence::file::FileFence;
use leasehold_net::BootClock;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::FakeTime;
use leasehold_testkit::server::redis::{Options, Redis};

/// What the lock protects: a file that is read, changed and written back.
struct Protected {
    folder: tempfile::TempDir,
}

impl Protected {
    fn new() -> Protected {
        let protected = Protected { folder: tempfile::tempdir().unwrap() };
        for path in [protected.bare(), protected.fenced()] {
            fs::write(path, "0").unwrap();
        }
        protected
    }

    /// Whoever believes may write it.
    fn bare(&self) -> PathBuf {
        self.folder.path().join("bare")
    }

    /// Written through a fence.
    fn fenced(&self) -> PathBuf {
        self.folder.path().join("fenced")
    }

    fn fence(&self) -> FileFence {
        FileFence::new(self.fenced())
    }

    /// Reads one of them, as the first step of a change.
    fn read(path: &Path) -> u64 {
        fs::read_to_string(path).unwrap().parse().unwrap()
    }

    /// The holder of the newer token changes both, the one of the older writes both back late.
    fn is_written_by(&self, newer: Token, older: Token) {
        let exclusive = |token| (Access::Exclusive, Mark::from(token));
        let old_sight = Protected::read(&self.bare());
        let (access, mark) = exclusive(newer);
        let passage = self.fence().enter(access, mark).unwrap();
        let new_sight = Protected::read(&self.fenced());
        assert_eq!(old_sight, new_sight);
        // Before the new holder's first write, a late write is refused already.
        let (access, late) = exclusive(older);
        drop(passage);
        self.fence().put(&b"100"[..], access, late).unwrap_err();
        for _ in 0..10 {
            let bare = Protected::read(&self.bare()) + 1;
            fs::write(self.bare(), bare.to_string()).unwrap();
            let fenced = Protected::read(&self.fenced()) + 1;
            self.fence().put(fenced.to_string().as_bytes(), access, mark).unwrap();
        }
        // The lock alone: ten changes are gone.
        fs::write(self.bare(), (old_sight + 1).to_string()).unwrap();
        assert_eq!(Protected::read(&self.bare()), 1);
        // The fence saves them.
        let late = self.fence().put((old_sight + 1).to_string().as_bytes(), access, late);
        assert!(late.unwrap_err().stale_mark().is_some());
        assert_eq!(Protected::read(&self.fenced()), 10);
    }
}

/// A holder pauses for longer than its term, and writes when it wakes.
#[test]
fn a_pause_outlives_the_term() {
    let servers = start();
    let (paused, other) = (open(&servers), open(&servers));
    let name = fresh("pause");
    let first = claim(&name, Duration::from_secs(1));
    let one = granted(&paused, &first);
    // It says nothing meanwhile; the lock goes to the other.
    let two =
        until_granted(&other, &claim(&name, Duration::from_secs(20)), Duration::from_secs(20));
    assert!(BootClock.now() >= one.until, "a holder that looks at its clock would have known");
    assert!(matches!(renew(&paused, &named(&first, &one)), Renewed::Gone(_)));
    // Whoever does not look writes all the same.
    Protected::new().is_written_by(two.token, one.token);
}

/// A member's clock jumps forward, and it lets a holder go that is as good as its majority.
#[test]
fn a_clock_jumps_at_a_member_that_a_majority_needs() {
    let time = Arc::new(FakeTime::new());
    let mut servers = start();
    servers[2] = Redis::with(Options { time: Some(Arc::clone(&time)), ..durable() });
    let (one, two) = (Behind::of(&servers), Behind::of(&servers));
    one.proxies[3..].iter().for_each(Proxy::pause);
    let (name, term) = (fresh("jump"), Duration::from_secs(20));
    let first = granted(&one.store, &claim(&name, term));
    time.step(3600);
    two.proxies[..2].iter().for_each(Proxy::pause);
    let second = until_granted(&two.store, &claim(&name, term), term);
    // The lock alone: two believe.
    assert!(BootClock.now() < first.until.min(second.until), "both still believe");
    // The tokens are in order, for that member is common to both, and the fence tells them apart.
    assert!(second.token > first.token);
    Protected::new().is_written_by(second.token, first.token);
}
