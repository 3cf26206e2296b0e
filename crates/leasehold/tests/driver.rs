//! The client over a store whose calls may not be polled by callers: all go through the driver.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_lite::future::{block_on, poll_once, zip};
use leasehold::core::{
    Admission, Claim, ClaimId, ClaimRef, Cursor, Hint, Record, Renewed, Result, Route, Written,
};
use leasehold::memory::Memory;
use leasehold::{
    AcquireError, Broken, Cleaned, Client, Left, Options, Page, Profile, Queue, Release,
    ResourceName, Store, Token,
};

/// The in-memory store, as one with a connection of its own would behave.
#[derive(Debug)]
struct Elsewhere {
    memory: Memory,
    profile: Profile,
}

impl Elsewhere {
    fn client(memory: &Memory) -> Client {
        let profile = Profile { polls_anywhere: false, ..memory.profile().clone() };
        let store = Elsewhere { memory: memory.clone(), profile };
        Client::new(Arc::new(store), Options::default()).unwrap()
    }

    /// Fails where a call is made on any thread but the driver's.
    fn on_driver(&self) -> &Memory {
        assert_eq!(std::thread::current().name(), Some("leasehold"));
        &self.memory
    }
}

#[async_trait]
impl Store for Elsewhere {
    fn profile(&self) -> &Profile {
        &self.profile
    }
    fn route(&self, r: &ResourceName) -> Route {
        self.memory.route(r)
    }
    async fn enter(&self, c: &Claim) -> Result<Admission> {
        self.on_driver().enter(c).await
    }
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        self.on_driver().renew(claims).await
    }
    async fn leave(&self, c: &ClaimRef) -> Result<Left> {
        self.on_driver().leave(c).await
    }
    async fn changed(
        &self,
        r: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        self.on_driver().changed(r, claim, since, at_most).await
    }
    async fn inspect(&self, r: &ResourceName) -> Result<Queue> {
        self.on_driver().inspect(r).await
    }
    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.on_driver().list(page).await
    }
    async fn write(&self, c: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        self.on_driver().write(c, value, keep).await
    }
    async fn read(&self, r: &ResourceName) -> Result<Option<Record>> {
        self.on_driver().read(r).await
    }
    async fn break_(&self, r: &ResourceName, expect: Option<Token>, now: bool) -> Result<Broken> {
        self.on_driver().break_(r, expect, now).await
    }
    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        self.on_driver().clean(keep, page, dry).await
    }
    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.memory.disturbed(since).await
    }

    async fn close(&self) {
        self.memory.close().await;
    }
}

#[test]
fn whoever_waits_gets_it_when_it_is_released() {
    block_on(async {
        let memory = Memory::new();
        let (here, there) = (Elsewhere::client(&memory), Elsewhere::client(&memory));
        let lease = here.lock("r").acquire().await.unwrap();
        let first = lease.token();
        let mut wait = Box::pin(there.lock("r").acquire());
        while here.inspect("r").await.unwrap().waiters().count() == 0 {
            assert!(poll_once(&mut wait).await.is_none());
        }
        let (released, next) = zip(lease.release(), wait).await;
        assert!(matches!(released, Release::Released), "{released:?}");
        assert!(next.unwrap().token() > first);
    });
}

#[test]
fn a_dropped_wait_leaves_the_queue_and_a_timed_one_ends() {
    block_on(async {
        let memory = Memory::new();
        let (here, there) = (Elsewhere::client(&memory), Elsewhere::client(&memory));
        let _lease = here.lock("r").acquire().await.unwrap();
        let waiters = async || here.inspect("r").await.unwrap().waiters().count();
        let mut wait = Box::pin(there.lock("r").acquire());
        while waiters().await == 0 {
            assert!(poll_once(&mut wait).await.is_none());
        }
        drop(wait);
        while waiters().await > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let timed = there.lock("r").wait(Duration::from_millis(20)).acquire().await;
        assert!(matches!(timed, Err(AcquireError::TimedOut(_))), "{timed:?}");
        assert!(there.lock("r").try_acquire().await.unwrap().is_none());
    });
}
