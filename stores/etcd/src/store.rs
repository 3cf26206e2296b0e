//! The store: where its tasks run, and what each verb hands to them.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, Cursor, Epoch, Error, ErrorKind,
    Hint, Left, Page, Profile, Queue, Record, Renewed, ResourceName, Result, Route, Store, Token,
    Written,
};
use leasehold_net::{BootClock, Io};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::config::EtcdConfig;
use crate::desk::Desk;
use crate::error::{DOING, Failure};
use crate::keys::Layout;
use crate::leases::Leases;
use crate::profile::{TERM_MAX, profile};
use crate::rpc::{Auth, Rpc, targets};
use crate::watch::Order;

/// How often claims that have ended are looked for.
const SWEEP_EVERY: Duration = Duration::from_millis(50);
/// After how many of those what is idle is let go.
const SWEEPS_TO_TIDY: u32 = 10;
/// Words for the watching task that it has not taken.
const WATCHING_MAX: usize = 1024;

/// The store over an etcd cluster. See the [crate's documentation](crate) for what it promises.
#[derive(Debug)]
pub struct EtcdStore {
    inner: Arc<Inner>,
    /// Its thread ends with it, and with it all that runs there.
    io: Io,
    /// The connection of the runtime that the store was connected in.
    front: Option<Rpc>,
    tasks: Vec<AbortHandle>,
}

/// What the tasks of a store share; they must not keep its thread.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) url: String,
    pub(crate) layout: Layout,
    pub(crate) clock: Arc<dyn Clock>,
    /// The connection of the store's own thread.
    pub(crate) rpc: Rpc,
    pub(crate) back: Handle,
    pub(crate) leases: Arc<Leases>,
    pub(crate) watching: mpsc::Sender<Order>,
    /// The shortest lease that the cluster gives, in seconds.
    pub(crate) ttl_min: u64,
    profile: Profile,
    epoch: Epoch,
    desk: Mutex<Desk>,
    watches: AtomicI64,
    closed: AtomicBool,
}

impl Inner {
    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn next_watch(&self) -> i64 {
        self.watches.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn failed(&self, failure: Failure) -> Error {
        failure.error(&self.url)
    }

    /// Refuses a term out of bounds, and says what the cluster's own bound is.
    pub(crate) fn check_term(&self, resource: &ResourceName, term: Duration) -> Result<()> {
        let min = Duration::from_secs(self.ttl_min);
        if (min..=TERM_MAX).contains(&term) {
            return Ok(());
        }
        let detail = format!(
            "its term is {term:?}: want {min:?}, the shortest lease that this cluster gives, to \
             366 days"
        );
        Err(Error::new(ErrorKind::Usage, DOING, detail)
            .on(resource)
            .advise("the cluster's minimum is 1.5 of its members' --election-timeout"))
    }
}

impl EtcdStore {
    /// Reaches the cluster: shows who we are, sees that its version will do and that this user may
    /// use the keys, and learns the shortest lease it gives. Tries for `connect_within`.
    ///
    /// May be polled anywhere. Polled within a tokio runtime, calls made there are answered there.
    ///
    /// # Errors
    ///
    /// `Config` for unfit certificates, a server that is no etcd or does not speak TLS, `Version`
    /// for one older than 3.4, `Permission`, and `Unreachable` or `Unavailable` when the time is
    /// up.
    pub async fn connect(config: EtcdConfig) -> Result<EtcdStore> {
        EtcdStore::connect_by(config, Arc::new(BootClock)).await
    }

    /// As [`EtcdStore::connect`], with another local clock, for tests.
    ///
    /// # Errors
    ///
    /// As [`EtcdStore::connect`].
    pub async fn connect_by(config: EtcdConfig, clock: Arc<dyn Clock>) -> Result<EtcdStore> {
        let url = config.url();
        if config.user.is_some() && config.password.is_none() {
            let detail = "a user is named, and no password for it";
            return Err(Error::new(ErrorKind::Config, "open the store", detail).at(url));
        }
        let io = Io::start("leasehold-etcd")?;
        let rpc = Rpc::new(targets(&config)?, Auth::new(&config), io.back().clone());
        let layout = Layout { prefix: config.prefix.clone(), names: config.names };
        let (leases, keeper) =
            Leases::new(rpc.clone(), url.clone(), Arc::clone(&clock), config.drift);
        let reached = {
            let (rpc, layout, leases) = (rpc.clone(), layout.clone(), Arc::clone(&leases));
            let (within, url) = (config.connect_within, url.clone());
            io.on_back("open the store", async move {
                crate::connect::reach(&rpc, &layout, &leases, within, &url).await
            })
            .await??
        };
        let (watching, orders) = mpsc::channel(WATCHING_MAX);
        let inner = Arc::new(Inner {
            profile: profile(url.clone(), reached.ttl_min, config.drift),
            url,
            layout,
            clock,
            back: io.back().clone(),
            leases,
            watching,
            ttl_min: reached.ttl_min,
            epoch: config.epoch,
            desk: Mutex::default(),
            watches: AtomicI64::new(1),
            closed: AtomicBool::new(false),
            rpc,
        });
        let tasks = vec![
            io.back().spawn(keeper).abort_handle(),
            io.back().spawn(crate::watch::watch(Arc::clone(&inner), orders)).abort_handle(),
            io.back().spawn(sweep(Arc::clone(&inner))).abort_handle(),
            io.back().spawn(crate::orphans::look_over(Arc::clone(&inner))).abort_handle(),
        ];
        let front = io.has_front().then(|| inner.rpc.elsewhere(io.front().clone()));
        Ok(EtcdStore { inner, io, front, tasks })
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    /// The key in which a claim stands, from its enter until it ends; no other claim ever uses it.
    /// A transaction that compares it as present (its creation revision is not 0) is refused once
    /// the claim has ended: the fence for what is kept in the same cluster.
    ///
    /// # Errors
    ///
    /// `Usage` for a name that cannot be a raw key.
    pub fn claim_key(&self, resource: &ResourceName, claim: ClaimId) -> Result<Vec<u8>> {
        Ok(self.inner.layout.keys(resource)?.claim(claim))
    }

    /// Runs a verb to its end, also where its caller is dropped half-way: what the cluster has done
    /// has to come into the books. A caller in the runtime of the front is answered there.
    async fn run<T, F>(&self, verb: impl FnOnce(Arc<Inner>, Rpc) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        if self.inner.closed.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Closed, DOING, "the store was closed"));
        }
        let here = Handle::try_current().ok().filter(|here| here.id() == self.io.front().id());
        let inner = Arc::clone(&self.inner);
        let task = match (here, &self.front) {
            (Some(here), Some(front)) => here.spawn(verb(inner, front.clone())),
            _ => self.io.back().spawn(verb(inner, self.inner.rpc.clone())),
        };
        match task.await {
            Ok(answer) => answer,
            Err(error) => {
                let (kind, detail) = if error.is_cancelled() {
                    (ErrorKind::Closed, "the runtime of the store's connection has ended")
                } else {
                    (ErrorKind::Bug, "a task of the store panicked")
                };
                Err(Error::new(kind, DOING, detail).maybe_applied())
            }
        }
    }
}

/// Ends claims whose time is up, and lets go of what is idle.
async fn sweep(inner: Arc<Inner>) {
    let mut count = 0_u32;
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let now = inner.clock.now();
        let over: Vec<leasehold_core::ClaimId> = {
            let desk = inner.desk();
            let holds = desk.holds.values().filter(|h| !h.ending && !inner.ends_by_lease(h));
            let parts = holds.flat_map(|hold| &hold.parts);
            parts.filter(|part| part.end <= now).map(|part| part.claim).collect()
        };
        for claim in over {
            inner.end_part(claim, leasehold_core::Ended::Expired);
        }
        inner.unfollow_crowds();
        count = (count + 1) % SWEEPS_TO_TIDY;
        if count == 0 {
            let in_use = inner.desk().leases_in_use();
            inner.leases.want(&in_use);
            inner.leases.tidy(&in_use);
            inner.unfollow_idle();
            inner.desk().tidy(now);
        }
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

#[async_trait]
impl Store for EtcdStore {
    fn profile(&self) -> &Profile {
        &self.inner.profile
    }

    fn route(&self, _resource: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let (owned, resource) = (claim.clone(), &claim.resource);
        let entered = self.run(|inner, rpc| crate::enter::enter(inner, rpc, owned)).await;
        entered.map_err(|e| e.while_doing("enter the queue").on(resource))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let owned = claims.to_vec();
        let renewed =
            self.run(|inner, rpc| async move { Ok(crate::renew::renew(inner, rpc, owned).await) });
        match renewed.await {
            Ok(answers) => answers,
            Err(error) => {
                let error = error.while_doing("renew");
                claims.iter().map(|_| Renewed::Unknown(error.clone())).collect()
            }
        }
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let (owned, resource) = (claim.clone(), &claim.resource);
        let left = self.run(|inner, rpc| crate::leave::leave(inner, rpc, owned)).await;
        left.map_err(|e| e.while_doing("leave").on(resource))
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let (inner, resource) = (Arc::clone(&self.inner), resource.clone());
        let heard = crate::changed::changed(inner, resource, claim, since, at_most);
        self.io.on_back("watch", heard).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        let owned = resource.clone();
        let queue = self.run(|inner, rpc| crate::inspect::inspect(inner, rpc, owned)).await;
        queue.map_err(|e| e.while_doing("inspect").on(resource))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        let page = page.clone();
        self.run(|inner, rpc| crate::list::list(inner, rpc, page)).await
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let (owned, value) = (claim.clone(), value.to_vec());
        let written = self.run(|inner, rpc| crate::write::write(inner, rpc, owned, value, keep));
        written.await.map_err(|e| e.while_doing("write a record").on(&claim.resource))
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        let owned = resource.clone();
        let read = self.run(|inner, rpc| crate::read::read(inner, rpc, owned)).await;
        read.map_err(|e| e.while_doing("read a record").on(resource))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let owned = resource.clone();
        let broken =
            self.run(|inner, rpc| crate::break_::break_(inner, rpc, owned, expect, now)).await;
        broken.map_err(|e| e.while_doing("break a grant").on(resource))
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let page = page.clone();
        self.run(|inner, rpc| crate::clean::clean(inner, rpc, keep, page, dry)).await
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.inner.leases.disturbed(since).await
    }

    async fn close(&self) {
        if self.inner.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        for task in &self.tasks {
            task.abort();
        }
        // Leases on which nothing stands go back; claims stay, and end with theirs.
        let inner = Arc::clone(&self.inner);
        let _ = self
            .io
            .on_back("close", async move {
                let in_use = inner.desk().leases_in_use();
                inner.leases.close(&in_use).await;
            })
            .await;
        self.inner.desk().all_moved();
    }
}
