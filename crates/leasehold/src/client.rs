//! The client: one store, one driver.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    BadName, Broken, ClaimId, Cleaned, Clock, ClockKind, Epoch, Error, ErrorKind, Holder, HolderId,
    Page, Profile, Queue, ResourceName, Result, Store, Token,
};

use crate::claimed::Claimed;
use crate::clock::SystemClock;
use crate::driver::Shared;
use crate::request::Request;
use crate::turns::Turns;

/// A client of one store. Cheap to clone; all clones and their leases share one driver, a thread
/// that starts with the first lease.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    turns: Turns,
    epoch: Epoch,
    label: String,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}

/// How a [`Client::close`] went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Closed {
    /// Every lease was released, and nothing is left at the store.
    Clean,
    /// The time was up before the store had answered; terms, or the kernel, end what is left.
    Unfinished,
}

/// Settings of a client that are not the store's.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// How long one store call may take: 10 s.
    pub call_within: Duration,
    /// The epoch of the store's tokens: 0.
    pub epoch: Epoch,
    /// What others see as the holder: host, pid and program, never its arguments.
    pub label: Option<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options { call_within: Duration::from_secs(10), epoch: Epoch(0), label: None }
    }
}

impl Client {
    /// A client of the embedded store, from a configuration that the caller has made.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("locks.db");
    /// let mut config = leasehold::sqlite::SqliteConfig::new(path);
    /// config.create_parents = true;
    /// let client = leasehold::Client::sqlite(config)?;
    /// assert_eq!(client.profile().name, "sqlite");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`](leasehold_sqlite::SqliteStore::open).
    #[cfg(feature = "sqlite")]
    pub fn sqlite(config: leasehold_sqlite::SqliteConfig) -> Result<Client> {
        let store = leasehold_sqlite::SqliteStore::open(config)?;
        let options = Options { epoch: store.epoch(), ..Options::default() };
        Client::new(Arc::new(store), options)
    }

    /// A client of Redis and Valkey, from a configuration that the caller has made.
    ///
    /// # Errors
    ///
    /// As [`RedisStore::connect`](leasehold_redis::RedisStore::connect).
    #[cfg(feature = "redis")]
    pub async fn redis(config: leasehold_redis::RedisConfig) -> Result<Client> {
        let options = Options { epoch: config.epoch, ..Options::default() };
        let store = leasehold_redis::RedisStore::connect(config).await?;
        Client::new(Arc::new(store), options)
    }

    /// A client of several independent Redis servers, from a configuration that the caller has made.
    ///
    /// # Errors
    ///
    /// As [`RedlockStore::connect`](leasehold_redlock::RedlockStore::connect).
    #[cfg(feature = "redlock")]
    pub async fn redlock(config: leasehold_redlock::RedlockConfig) -> Result<Client> {
        let options = Options { epoch: config.epoch, ..Options::default() };
        let store = leasehold_redlock::RedlockStore::connect(config).await?;
        Client::new(Arc::new(store), options)
    }

    /// A client of ZooKeeper, from a configuration that the caller has made.
    ///
    /// # Errors
    ///
    /// As [`ZookeeperStore::connect`](leasehold_zookeeper::ZookeeperStore::connect).
    #[cfg(feature = "zookeeper")]
    pub async fn zookeeper(config: leasehold_zookeeper::ZookeeperConfig) -> Result<Client> {
        let options = Options { epoch: config.epoch, ..Options::default() };
        let store = leasehold_zookeeper::ZookeeperStore::connect(config).await?;
        Client::new(Arc::new(store), options)
    }

    /// A client of etcd, from a configuration that the caller has made.
    ///
    /// # Errors
    ///
    /// As [`EtcdStore::connect`](leasehold_etcd::EtcdStore::connect).
    #[cfg(feature = "etcd")]
    pub async fn etcd(config: leasehold_etcd::EtcdConfig) -> Result<Client> {
        let options = Options { epoch: config.epoch, ..Options::default() };
        let store = leasehold_etcd::EtcdStore::connect(config).await?;
        Client::new(Arc::new(store), options)
    }

    /// A client of MySQL and MariaDB, from a configuration that the caller has made.
    ///
    /// # Errors
    ///
    /// As [`MysqlStore::connect`](leasehold_mysql::MysqlStore::connect).
    #[cfg(feature = "mysql")]
    pub async fn mysql(config: leasehold_mysql::MysqlConfig) -> Result<Client> {
        let options = Options { epoch: config.epoch, ..Options::default() };
        let store = leasehold_mysql::MysqlStore::connect(config).await?;
        Client::new(Arc::new(store), options)
    }

    /// A client of PostgreSQL, from a configuration that the caller has made.
    ///
    /// # Errors
    ///
    /// As [`PostgresStore::connect`](leasehold_postgres::PostgresStore::connect).
    #[cfg(feature = "postgres")]
    pub async fn postgres(config: leasehold_postgres::PostgresConfig) -> Result<Client> {
        let options = Options { epoch: config.epoch, ..Options::default() };
        let store = leasehold_postgres::PostgresStore::connect(config).await?;
        Client::new(Arc::new(store), options)
    }

    /// A client of a store that the caller has made.
    ///
    /// # Errors
    ///
    /// If the operating system has no random numbers.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Result<Client> {
        let clock = Arc::new(SystemClock::new(store.profile().clock));
        Client::with_clock(store, clock, options)
    }

    pub(crate) fn with_clock(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Client> {
        let Options { call_within, epoch, label } = options;
        let seed = crate::random::bits128()?;
        let seed = u64::try_from(seed >> 64).unwrap_or_default();
        let shared = Arc::new(Shared::new(store, clock, call_within, seed));
        let label = label.unwrap_or_else(default_label);
        Ok(Client { inner: Arc::new(Inner { shared, turns: Turns::default(), epoch, label }) })
    }

    /// Asks for a lease on this name. See [`Request`].
    pub fn lock(&self, name: &str) -> Request {
        Request::new(self.clone(), name)
    }

    /// A claim that another process, or an earlier run of this one, has made.
    ///
    /// # Errors
    ///
    /// `Usage` for a bad name.
    pub fn claim(&self, name: &str, claim: ClaimId) -> Result<Claimed> {
        Ok(Claimed::new(self.clone(), self.resource(name)?, claim))
    }

    /// A new holder: pass it to several requests to let them re-enter each other's leases.
    ///
    /// # Errors
    ///
    /// If the operating system has no random numbers.
    pub fn new_holder(&self, label: Option<&str>) -> Result<Holder> {
        let id = HolderId::from_bits(crate::random::bits128()?);
        Ok(Holder::new(id, label.unwrap_or(&self.inner.label)))
    }

    /// What the store promises.
    pub fn profile(&self) -> &Profile {
        self.store().profile()
    }

    /// The epoch of the store's tokens.
    pub fn epoch(&self) -> Epoch {
        self.inner.epoch
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.inner.shared.store()
    }

    /// Who holds and who waits.
    ///
    /// # Errors
    ///
    /// The store's; `Usage` for a bad name.
    pub async fn inspect(&self, name: &str) -> Result<Queue> {
        let name = self.resource(name)?;
        let store = Arc::clone(self.store());
        self.shared().call("inspect", Box::pin(async move { store.inspect(&name).await })).await
    }

    /// Names that are held, waited for or remembered, in byte order.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        let store = Arc::clone(self.store());
        let page = page.clone();
        self.shared().call("list names", Box::pin(async move { store.list(&page).await })).await
    }

    /// An operator's force: see [`Store::break_`].
    ///
    /// # Errors
    ///
    /// The store's; `Usage` for a bad name.
    pub async fn break_(&self, name: &str, expect: Option<Token>, now: bool) -> Result<Broken> {
        let name = self.resource(name)?;
        let store = Arc::clone(self.store());
        self.shared()
            .call("break a grant", Box::pin(async move { store.break_(&name, expect, now).await }))
            .await
    }

    /// Forgets names unused for `keep`: see [`Store::clean`].
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let store = Arc::clone(self.store());
        let page = page.clone();
        self.shared()
            .call("clean names", Box::pin(async move { store.clean(keep, &page, dry).await }))
            .await
    }

    /// Releases every lease and lets go of the store, for at most this long.
    ///
    /// Leases of this client and its clones are lost to their owners from now on, who are told so
    /// first ([`Loss::Closed`](crate::Loss::Closed)); acquisitions end with an error, also those that
    /// wait.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the releases go on in the background.
    pub async fn close(self, within: Duration) -> Closed {
        let shared = self.shared();
        shared.begin_close();
        shared.release_all();
        let end = shared.clock().now() + within;
        let done = async {
            shared.until_ended().await;
            Closed::Clean
        };
        let late = async {
            shared.sleep_beside(end).await;
            Closed::Unfinished
        };
        if futures_lite::future::or(done, late).await == Closed::Unfinished {
            return Closed::Unfinished;
        }
        // A store may have to say farewell to a server that does not answer.
        let done = async {
            self.store().close().await;
            Closed::Clean
        };
        let late = async {
            shared.sleep_until(end).await;
            Closed::Unfinished
        };
        futures_lite::future::or(done, late).await
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn turns(&self) -> &Turns {
        &self.inner.turns
    }

    pub(crate) fn resource(&self, name: &str) -> Result<ResourceName> {
        ResourceName::new(name).map_err(|e| bad_name(&e))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("store", &self.profile().url).finish_non_exhaustive()
    }
}

fn bad_name(why: &BadName) -> Error {
    Error::new(ErrorKind::Usage, "read a name", why.to_string())
}

fn default_label() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let program = std::env::args_os().next().unwrap_or_default();
    let program = std::path::Path::new(&program).file_name().unwrap_or_default();
    format!("{host}:{}:{}", std::process::id(), program.to_string_lossy())
}

/// Which clock a store is judged by, for callers that compare [`Lease::until`](crate::Lease::until)
/// with it.
pub fn now(kind: ClockKind) -> leasehold_core::Moment {
    SystemClock::new(kind).now()
}
