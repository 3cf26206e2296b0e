//! What the tests of this store share.
// Each test program uses a part of it.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod agent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold_core::{
    Admission, Claim, ClaimId, ClaimRef, Clock, Grant, Holder, HolderId, Left, Life, Mode, Moment,
    Place, Renewed, ResourceName, Store, Waiting,
};
use leasehold_sqlite::{BootId, Machine, SqliteConfig, SqliteStore, WallClock};

/// A clock that stands where it was put.
#[derive(Debug, Default)]
pub(crate) struct HandClock(pub(crate) AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::SeqCst))
    }
}

/// A wall clock that stands where it was put.
#[derive(Debug, Default)]
pub(crate) struct HandWall(pub(crate) AtomicU64);

impl WallClock for HandWall {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A machine whose clocks are set by hand.
pub(crate) struct Hands {
    pub(crate) clock: Arc<HandClock>,
    pub(crate) wall: Arc<HandWall>,
    pub(crate) machine: Machine,
}

pub(crate) fn hands() -> Hands {
    let clock = Arc::new(HandClock(AtomicU64::new(1_000_000_000_000)));
    let wall = Arc::new(HandWall(AtomicU64::new(1_700_000_000_000_000)));
    let machine =
        Machine { clock: clock.clone(), wall: wall.clone(), boot: BootId([7; 16]), ahead_ns: 0 };
    Hands { clock, wall, machine }
}

impl Hands {
    pub(crate) fn pass(&self, span: Duration) {
        self.clock.0.fetch_add(u64::try_from(span.as_nanos()).unwrap(), Ordering::SeqCst);
        self.wall.0.fetch_add(u64::try_from(span.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

pub(crate) fn config(dir: &tempfile::TempDir) -> SqliteConfig {
    SqliteConfig::new(dir.path().join("locks.db"))
}

pub(crate) fn open(dir: &tempfile::TempDir) -> SqliteStore {
    SqliteStore::open(config(dir)).unwrap()
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::new(text).unwrap()
}

/// A fresh id.
pub(crate) fn random() -> u128 {
    let mut bytes = [0_u8; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom").unwrap(), &mut bytes)
        .unwrap();
    u128::from_ne_bytes(bytes)
}

/// A claim that queues, of a holder of its own, with a term of a minute.
pub(crate) fn claim(resource: &str) -> Claim {
    Claim {
        id: ClaimId::from_bits(random()),
        resource: name(resource),
        holder: Holder::new(HolderId::from_bits(random()), "test"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(60),
        life: Life::Process,
        place: Place::Term(leasehold_core::PlaceKept::Watched.term()),
        after_loss: Duration::ZERO,
    }
}

pub(crate) fn enter(store: &SqliteStore, claim: &Claim) -> Admission {
    block_on(store.enter(claim)).unwrap()
}

pub(crate) fn granted(store: &SqliteStore, claim: &Claim) -> Grant {
    match enter(store, claim) {
        Admission::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn waiting(store: &SqliteStore, claim: &Claim) -> Waiting {
    match enter(store, claim) {
        Admission::Waiting(waiting) => waiting,
        other => panic!("not waiting: {other:?}"),
    }
}

pub(crate) fn leave(store: &SqliteStore, claim: &Claim) -> Left {
    block_on(store.leave(&claim.to_ref())).unwrap()
}

pub(crate) fn renew(store: &SqliteStore, claim: &ClaimRef) -> Renewed {
    block_on(store.renew(std::slice::from_ref(claim))).pop().unwrap()
}
