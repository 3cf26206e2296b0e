//! The embedded store, with what passes to waiting claims counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use leasehold::core::{
    Admission, Claim, ClaimId, ClaimRef, Cleaned, Cursor, Hint, Page, Profile, Queue, Record,
    Renewed, ResourceName, Result, Route, Store, Token, Written,
};
use leasehold::sqlite::SqliteStore;
use leasehold::{Broken, Left};

#[derive(Debug)]
pub(super) struct Counted {
    store: SqliteStore,
    hints: AtomicU64,
    looks: AtomicU64,
}

impl Counted {
    pub(super) fn new(store: SqliteStore) -> Counted {
        Counted { store, hints: AtomicU64::new(0), looks: AtomicU64::new(0) }
    }

    /// Hints told to waiting claims, and looks that these took at the queue.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.hints.load(Ordering::Relaxed), self.looks.load(Ordering::Relaxed))
    }
}

#[async_trait]
impl Store for Counted {
    fn profile(&self) -> &Profile {
        self.store.profile()
    }

    fn route(&self, resource: &ResourceName) -> Route {
        self.store.route(resource)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        self.store.enter(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.store.renew(claims).await
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        self.store.leave(claim).await
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let hint = self.store.changed(resource, claim, since, at_most).await;
        self.hints.fetch_add(1, Ordering::Relaxed);
        hint
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        self.store.inspect(resource).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.store.list(page).await
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        self.store.write(claim, value, keep).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        self.store.read(resource).await
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        self.store.break_(resource, expect, now).await
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        self.store.clean(keep, page, dry).await
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.store.disturbed(since).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
