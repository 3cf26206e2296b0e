//! From a store's URL to a client.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Epoch, Error, ErrorKind, Result, Store};
#[cfg(feature = "net")]
use leasehold_net::Secret;

use crate::client::{Client, Options};

/// The URLs of the stores that this build can reach, as a user writes them.
pub const STORE_URLS: &[&str] = &[
    #[cfg(feature = "sqlite")]
    "sqlite:PATH",
    #[cfg(feature = "postgres")]
    "postgres://USER@HOST/DATABASE",
    #[cfg(feature = "mysql")]
    "mysql://USER@HOST/DATABASE",
    #[cfg(feature = "redis")]
    "redis://HOST/DB",
    #[cfg(feature = "redis")]
    "redis+sentinel://HOST,HOST/MASTER",
    #[cfg(feature = "redis")]
    "redis+cluster://HOST,HOST",
    #[cfg(feature = "etcd")]
    "etcd://HOST,HOST",
    #[cfg(feature = "redlock")]
    "redlock://HOST,HOST,HOST",
    #[cfg(feature = "zookeeper")]
    "zk://HOST,HOST/PATH",
    "memory:",
];

/// Reaches a store over a network: its configuration is the URL's, and what the URL does not say.
#[cfg(feature = "net")]
macro_rules! reach {
    ($connect:ident, $config:ty, $store:ty) => {{
        let mut config = <$config>::from_url(&$connect.url)?;
        if $connect.password.is_some() {
            config.password.clone_from(&$connect.password);
        }
        config.connect_within = $connect.connect_within.unwrap_or(config.connect_within);
        let epoch = config.epoch;
        // Each of them is large, and the rest of them is not needed.
        let store = Box::pin(<$store>::connect(config)).await?;
        $connect.client(store, epoch)
    }};
}

/// A client of the store that a URL names: short for [`Connect::to`] and [`Connect::open`].
///
/// `sqlite:PATH` (with `?mode=0660` to share it between users) is the embedded store; `memory:` is
/// a store of this process alone, for tests. `?epoch=N` sets the epoch of the tokens. The stores
/// over a network have the options that their own modules tell.
///
/// # Errors
///
/// As [`Connect::open`].
///
/// ```
/// # leasehold::blocking::block_on(async {
/// let client = leasehold::connect("memory:").await?;
/// let lease = client.lock("nightly").acquire().await?;
/// assert_eq!(lease.name().as_str(), "nightly");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub async fn connect(url: &str) -> Result<Client> {
    Connect::to(url).open().await
}

/// How to reach a store: its URL, and what a URL should not carry or cannot say.
///
/// ```
/// use std::time::Duration;
/// use leasehold::Connect;
///
/// # leasehold::blocking::block_on(async {
/// let client = Connect::to("memory:")
///     .connect_within(Duration::from_secs(3))
///     .call_within(Duration::from_secs(2))
///     .label("billing")
///     .open()
///     .await?;
/// # drop(client);
/// # Ok::<(), leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// What only one store knows is in its own configuration, for example
/// [`SqliteConfig`](crate::sqlite::SqliteConfig) with [`Client::sqlite`].
#[derive(Debug, Clone)]
#[must_use = "nothing is reached before `open`"]
pub struct Connect {
    url: String,
    #[cfg(feature = "net")]
    password: Option<Secret>,
    connect_within: Option<Duration>,
    call_within: Duration,
    label: Option<String>,
}

impl Connect {
    /// The store with this URL.
    pub fn to(url: impl Into<String>) -> Connect {
        Connect {
            url: url.into(),
            #[cfg(feature = "net")]
            password: None,
            connect_within: None,
            call_within: Options::default().call_within,
            label: None,
        }
    }

    /// The password, in place of one in the URL, where it would be read by whoever reads a list of
    /// processes or a log. It is wiped from memory when it is dropped, and shows nowhere. Stores
    /// that know no passwords pay no heed to it.
    #[cfg(feature = "net")]
    pub fn password(mut self, password: impl Into<Secret>) -> Connect {
        self.password = Some(password.into());
        self
    }

    /// For how long a store that does not answer is tried until [`Connect::open`] fails: 10 s by
    /// default. Once it was reached, a lost connection is made anew by itself, for ever. On the
    /// embedded store: for how long another program's write is waited for.
    pub fn connect_within(mut self, span: Duration) -> Connect {
        self.connect_within = Some(span);
        self
    }

    /// How long one call to the store may take: 10 s by default.
    pub fn call_within(mut self, span: Duration) -> Connect {
        self.call_within = span;
        self
    }

    /// What others see as the holder; host, pid and program by default.
    pub fn label(mut self, label: impl Into<String>) -> Connect {
        self.label = Some(label.into());
        self
    }

    /// Reaches the store, and sees that it is one that can be used.
    ///
    /// A store over a network is used from the runtime in which this is polled, if there is one,
    /// and from a thread of its own.
    ///
    /// # Errors
    ///
    /// `Config` for a URL that names no store of this build ([`STORE_URLS`]) or has an option that
    /// the store does not know; `Permission` for credentials that it refuses; `Unreachable` if it
    /// does not answer in time; and whatever else opening it brings.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, nothing is left behind.
    pub async fn open(self) -> Result<Client> {
        let scheme = self.url.split_once(':').map_or("", |(scheme, _)| scheme);
        // `redis+cluster` is a kind of `redis`.
        match scheme.split('+').next().unwrap_or_default() {
            #[cfg(feature = "sqlite")]
            "sqlite" => {
                let mut config = leasehold_sqlite::SqliteConfig::from_url(&self.url)?;
                config.busy_limit = self.connect_within.unwrap_or(config.busy_limit);
                let epoch = config.epoch;
                let store = leasehold_sqlite::SqliteStore::open(config)?;
                self.client(store, epoch)
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "valkey" | "valkeys" => {
                reach!(self, leasehold_redis::RedisConfig, leasehold_redis::RedisStore)
            }
            #[cfg(feature = "redlock")]
            "redlock" | "redlocks" => {
                reach!(self, leasehold_redlock::RedlockConfig, leasehold_redlock::RedlockStore)
            }
            #[cfg(feature = "zookeeper")]
            "zk" | "zookeeper" | "zookeepers" => {
                reach!(
                    self,
                    leasehold_zookeeper::ZookeeperConfig,
                    leasehold_zookeeper::ZookeeperStore
                )
            }
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => {
                reach!(self, leasehold_etcd::EtcdConfig, leasehold_etcd::EtcdStore)
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => {
                reach!(self, leasehold_mysql::MysqlConfig, leasehold_mysql::MysqlStore)
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                reach!(self, leasehold_postgres::PostgresConfig, leasehold_postgres::PostgresStore)
            }
            "memory" if self.url.split('?').next() == Some("memory:") => {
                let epoch = epoch_of(&self.url)?;
                self.client(crate::memory::Memory::new(), epoch)
            }
            _ => Err(unknown(scheme)),
        }
    }

    fn client(self, store: impl Store, epoch: Epoch) -> Result<Client> {
        let options = Options { call_within: self.call_within, epoch, label: self.label };
        Client::new(Arc::new(store), options)
    }
}

fn unknown(scheme: &str) -> Error {
    let known = STORE_URLS.join(", ");
    let detail = match scheme {
        "" => format!("no scheme in the store's URL: want one of {known}"),
        other => {
            let other = leasehold_core::shown(other, 40);
            format!("no store `{other}:` in this build: want one of {known}")
        }
    };
    Error::new(ErrorKind::Config, "connect", detail)
}

/// The epoch that a URL names, where the store reads no more of it.
fn epoch_of(url: &str) -> Result<Epoch> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    match query.split('&').find_map(|pair| pair.strip_prefix("epoch=")) {
        None => Ok(Epoch(0)),
        Some(number) => number.parse().map(Epoch).map_err(|_| {
            let detail = "epoch is not a number from 0 to 4294967295";
            Error::new(ErrorKind::Config, "connect", detail)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_is_read_wherever_it_stands() {
        assert_eq!(epoch_of("sqlite:/x").unwrap(), Epoch(0));
        assert_eq!(epoch_of("sqlite:/x?epoch=3").unwrap(), Epoch(3));
        assert_eq!(epoch_of("sqlite:/x?mode=0660&epoch=3").unwrap(), Epoch(3));
        assert!(epoch_of("sqlite:/x?epoch=-1").is_err());
        assert_eq!(crate::blocking::connect("memory:?epoch=2").unwrap().epoch(), Epoch(2));
    }

    #[test]
    fn an_unknown_store_is_refused_by_name_and_the_known_ones_are_named() {
        let error = crate::blocking::connect("carrier-pigeon://x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("carrier-pigeon"), "{error}");
        for url in STORE_URLS {
            assert!(error.to_string().contains(url), "{error}");
        }
    }

    #[cfg(feature = "net")]
    #[test]
    fn a_password_is_not_shown() {
        let connect = Connect::to("memory:").password("s3cret");
        assert!(!format!("{connect:?}").contains("s3cret"));
    }
}
