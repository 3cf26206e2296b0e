//! The suite that every store passes.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, Cursor, Error, ErrorKind, Hint,
    Left, Moment, Page, Profile, Queue, Record, Renewed, ResourceName, Result, Route, Store, Token,
    Written,
};
use leasehold_sqlite::SqliteStore;
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, block_on};

/// A directory, clocks set by hand, and the clients that can be killed.
struct Embedded {
    directory: tempfile::TempDir,
    hands: common::Hands,
    clients: Mutex<Vec<Arc<Client>>>,
}

/// A client whose process can die: then it lets go of everything without a word.
#[derive(Debug)]
struct Client {
    store: Mutex<Option<Arc<SqliteStore>>>,
    profile: Profile,
}

impl Client {
    fn store(&self) -> Result<Arc<SqliteStore>> {
        let store = self.store.lock().unwrap().clone();
        store.ok_or_else(|| Error::new(ErrorKind::Closed, "ask the dead", "its process is dead"))
    }
}

impl Embedded {
    fn new() -> Embedded {
        Embedded {
            directory: tempfile::tempdir().unwrap(),
            hands: common::hands(),
            clients: Mutex::default(),
        }
    }
}

impl Harness for Embedded {
    fn open(&self) -> Arc<dyn Store> {
        let config = common::config(&self.directory);
        let store = SqliteStore::open_on(config, self.hands.machine.clone()).unwrap();
        let profile = store.profile().clone();
        let client = Arc::new(Client { store: Mutex::new(Some(Arc::new(store))), profile });
        self.clients.lock().unwrap().push(Arc::clone(&client));
        client
    }

    fn now(&self) -> Moment {
        self.hands.clock.now()
    }

    fn pass(&self, span: Duration) {
        self.hands.pass(span);
        // The threads that wait do so in real time.
        std::thread::sleep(Duration::from_millis(1));
    }

    fn run(&self, case: LocalFuture<'_>) {
        block_on(case);
    }

    fn hurt(&self, hurt: Hurt<'_>) -> Ability {
        match hurt {
            Hurt::Kill(killed) => {
                let clients = self.clients.lock().unwrap();
                let same =
                    |c: &&Arc<Client>| std::ptr::addr_eq(Arc::as_ptr(c), Arc::as_ptr(killed));
                let client = clients.iter().find(same).expect("a client of this world");
                drop(client.store.lock().unwrap().take());
                Ability::Done
            }
            Hurt::Sever | Hurt::Pause | Hurt::Resume => {
                Ability::Absent("there is no server and no connection")
            }
            Hurt::Evict(name) => {
                self.evict(name);
                Ability::Done
            }
        }
    }
}

impl Embedded {
    /// As an operator's hand would.
    fn evict(&self, name: &ResourceName) {
        let path = common::config(&self.directory).path;
        let db = rusqlite::Connection::open(path).unwrap();
        let of = "(SELECT id FROM resource WHERE name = ?1)";
        for sql in [
            format!("DELETE FROM claim WHERE resource = {of}"),
            format!("DELETE FROM record WHERE resource = {of}"),
            "DELETE FROM resource WHERE name = ?1".into(),
        ] {
            db.execute(&sql, [name.as_str()]).unwrap();
        }
    }
}

#[async_trait]
impl Store for Client {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, _: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        self.store()?.enter(claim).await
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        match self.store() {
            Ok(store) => store.renew(claims).await,
            Err(error) => claims.iter().map(|_| Renewed::Unknown(error.clone())).collect(),
        }
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        self.store()?.leave(claim).await
    }

    async fn changed(
        &self,
        name: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        self.store()?.changed(name, claim, since, at_most).await
    }

    async fn inspect(&self, name: &ResourceName) -> Result<Queue> {
        self.store()?.inspect(name).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.store()?.list(page).await
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        self.store()?.write(claim, value, keep).await
    }

    async fn read(&self, name: &ResourceName) -> Result<Option<Record>> {
        self.store()?.read(name).await
    }

    async fn break_(
        &self,
        name: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        self.store()?.break_(name, expect, now).await
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        self.store()?.clean(keep, page, dry).await
    }

    async fn disturbed(&self, _since: Cursor) -> Cursor {
        std::future::pending().await
    }

    async fn close(&self) {
        if let Ok(store) = self.store() {
            store.close().await;
        }
    }
}

leasehold_testkit::conformance!(Embedded::new());
