//! What the tests of this store share.
// Each test program uses a part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_lite::future::block_on;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, Cursor, Error, ErrorKind, Grant,
    Hint, Holder, HolderId, Ids, Left, Life, Mode, Moment, Page, Place, Profile, PushedEnd, Queue,
    Record, Renewed, ResourceName, Result, Route, Store, Token, Written,
};
use leasehold_etcd::{EtcdConfig, EtcdStore};
use leasehold_net::BootClock;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::etcd::{Etcd, Options, Release};
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture};

/// One server a release for all cases of a test program.
pub(crate) fn server(release: Release) -> &'static Etcd {
    static SERVERS: [OnceLock<Etcd>; 2] = [OnceLock::new(), OnceLock::new()];
    let at = Release::ALL.iter().position(|one| *one == release).unwrap();
    SERVERS[at].get_or_init(|| Etcd::with(Options { release, ..Options::default() }))
}

/// A part of the keys that nobody else uses.
pub(crate) fn fresh_prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("t{}-{}/", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn config(port: u16, prefix: &str) -> EtcdConfig {
    let mut config = EtcdConfig::new("127.0.0.1", port);
    config.prefix = prefix.to_owned();
    config
}

pub(crate) fn connect(config: EtcdConfig) -> EtcdStore {
    block_on(EtcdStore::connect(config)).unwrap()
}

/// A part of a server's keys, its clients behind a proxy.
pub(crate) struct World {
    etcd: &'static Etcd,
    proxy: Proxy,
    prefix: String,
    clients: Mutex<Vec<Arc<Client>>>,
    /// Whether claims can be passed on; if not, all stand on the common leases of their process.
    transferable: bool,
}

/// A client whose process can die: then it says no more, not even that it ends.
#[derive(Debug)]
pub(crate) struct Client {
    store: Mutex<Option<Arc<EtcdStore>>>,
    profile: Profile,
}

impl World {
    pub(crate) fn new(release: Release, transferable: bool) -> World {
        let etcd = server(release);
        World {
            etcd,
            proxy: Proxy::start(etcd.addr()),
            prefix: fresh_prefix(),
            clients: Mutex::default(),
            transferable,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.clients.lock().unwrap().clear();
        self.etcd.ctl(&["del", "--prefix", &self.prefix]);
    }
}

impl Harness for World {
    fn open(&self) -> Arc<dyn Store> {
        let store = connect(config(self.proxy.port(), &self.prefix));
        let mut profile = store.profile().clone();
        profile.transferable = self.transferable;
        let client = Arc::new(Client { store: Mutex::new(Some(Arc::new(store))), profile });
        self.clients.lock().unwrap().push(Arc::clone(&client));
        client
    }

    fn now(&self) -> Moment {
        BootClock.now()
    }

    fn pass(&self, span: Duration) {
        std::thread::sleep(span);
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
            }
            Hurt::Sever => self.proxy.sever(),
            Hurt::Pause => self.proxy.pause(),
            Hurt::Resume => self.proxy.resume(),
            Hurt::Evict(name) => {
                let base = format!("{}{}", self.prefix, name.as_str());
                self.etcd.ctl(&["del", "--prefix", &format!("{base}.")]);
                self.etcd.ctl(&["del", "--prefix", &format!("{base}/")]);
            }
        }
        Ability::Done
    }
}

impl Client {
    fn store(&self) -> Result<Arc<EtcdStore>> {
        let store = self.store.lock().unwrap().clone();
        store.ok_or_else(|| Error::new(ErrorKind::Closed, "ask the dead", "its process is dead"))
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

    async fn disturbed(&self, since: Cursor) -> Cursor {
        match self.store() {
            Ok(store) => store.disturbed(since).await,
            Err(_) => std::future::pending().await,
        }
    }

    async fn close(&self) {
        if let Ok(store) = self.store() {
            store.close().await;
        }
    }
}

/// A client as users have it, driver and all.
pub(crate) fn client(config: EtcdConfig) -> leasehold::Client {
    let store: Arc<dyn Store> = Arc::new(connect(config));
    leasehold::Client::new(store, leasehold::Options::default()).unwrap()
}

/// Waits until nothing stands under a prefix any more but what is remembered of names.
pub(crate) fn until_no_claim(etcd: &Etcd, prefix: &str) {
    leasehold_testkit::server::wait_until("no claim is left", Duration::from_secs(60), || {
        let keys = etcd.ctl(&["get", "--prefix", "--keys-only", prefix]);
        let claims: Vec<&str> = keys
            .lines()
            .filter(|key| !key.is_empty() && !key.contains(".lh.") && !key.contains(".leasehold/"))
            .collect();
        if claims.is_empty() { Ok(()) } else { Err(format!("{claims:?}")) }
    });
}

/// Waits until the server has no lease any more. For servers that nobody else uses.
pub(crate) fn until_no_lease(etcd: &Etcd) {
    leasehold_testkit::server::wait_until("no lease is left", Duration::from_secs(60), || {
        let text = etcd.ctl(&["lease", "list"]);
        if text.contains("found 0 leases") { Ok(()) } else { Err(text) }
    });
}

/// Waits until no key of ours is left under a name: what stays is foreign.
pub(crate) fn until_no_lease_but(etcd: &Etcd, name: &str) {
    leasehold_testkit::server::wait_until("ours are gone", Duration::from_secs(60), || {
        let values = etcd.ctl(&["get", "--prefix", "--print-value-only", &format!("{name}/")]);
        if values.contains("leasehold") { Err(values) } else { Ok(()) }
    });
}

/// Gives a lease back, which has to be held to the end.
pub(crate) fn released(lease: leasehold::Lease) {
    let release = block_on(lease.release());
    assert!(matches!(release, leasehold::Release::Released), "{release:?}");
}

/// A claim of a holder of its own that queues.
pub(crate) fn claim(name: &str) -> Claim {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).unwrap();
    let mut ids = Ids::seeded(u128::from_le_bytes(bits));
    Claim {
        id: ids.claim(),
        resource: ResourceName::new(name).unwrap(),
        holder: Holder::new(HolderId::from_bits(ids.claim().bits()), "faults"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(2),
        life: Life::Process,
        place: Place::Term(Duration::from_secs(60)),
        after_loss: Duration::ZERO,
    }
}

pub(crate) fn granted(store: &EtcdStore, claim: &Claim) -> Grant {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn waits(store: &EtcdStore, claim: &Claim) {
    let entered = block_on(store.enter(claim)).unwrap();
    assert!(matches!(entered, Admission::Waiting(_)), "{entered:?}");
}

pub(crate) fn renewed(store: &EtcdStore, claim: &Claim) -> Renewed {
    block_on(store.renew(&[claim.to_ref()])).pop().unwrap()
}

/// Waits for word of the grant of a claim that waits.
pub(crate) fn until_pushed(store: &EtcdStore, claim: &Claim) -> Grant {
    let mut since = Cursor::default();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let at_most = Duration::from_millis(500);
        match block_on(store.changed(&claim.resource, Some(claim.id), since, at_most)).unwrap() {
            Hint::Granted(pushed) => {
                let PushedEnd::At(until) = pushed.grant.until else { panic!("{pushed:?}") };
                return pushed.grant.map_until(|_| until);
            }
            Hint::Moved(cursor) => since = cursor,
        }
        if let Renewed::Granted(grant) = renewed(store, claim) {
            return grant;
        }
    }
    panic!("no word of {:?}", claim.resource);
}
