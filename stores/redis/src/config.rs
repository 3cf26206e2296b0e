//! Where the store is, and how it is used.

use std::time::Duration;

use leasehold_core::{Drift, Epoch, Error, ErrorKind, Result, shown};
use leasehold_net::{HostPort, Secret, StoreUrl, Tls};

/// The options that a URL may have.
const OPTIONS: &str = "layout, durability, drift, epoch, sentinel_user, sentinel_password, ca, \
                       cert, key and server_name";

/// How the store is reached and used: by [`RedisConfig::from_url`], or field by field.
///
/// ```
/// use leasehold_redis::{Layout, RedisConfig};
///
/// let config = RedisConfig::from_url("rediss://app:s3cret@db.example/2?layout=plain")?;
/// assert_eq!(config.layout, Layout::Plain);
/// assert!(!format!("{config:?}").contains("s3cret"));
/// assert_eq!(config.url(), "rediss://app@db.example/2?layout=plain");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RedisConfig {
    /// Which servers, and how they stand together.
    pub servers: Servers,
    /// The user, where the server has users.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The database; a cluster has only 0.
    pub db: u32,
    /// TLS, by `rediss`.
    pub tls: Option<Tls>,
    /// How an exclusive lock looks to clients that are not leasehold.
    pub layout: Layout,
    /// When a grant counts as made.
    pub durability: Durability,
    /// How much the server's clock may gain on ours.
    pub drift: Drift,
    /// Which history the tokens belong to.
    pub epoch: Epoch,
    /// For how long the first connection is tried.
    pub connect_within: Duration,
    /// The first term of a grant that another's release made, for tests.
    #[doc(hidden)]
    pub first_term: Duration,
    /// Claims with a shorter term are told to look instead, for tests.
    #[doc(hidden)]
    pub push_min: Duration,
}

/// Two heartbeats and four round trips.
const FIRST_TERM: Duration = Duration::from_secs(3);
const PUSH_MIN: Duration = Duration::from_millis(2500);

/// Which servers, and how they stand together.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Servers {
    /// One server: `redis://HOST`.
    Single(HostPort),
    /// A master that Sentinels name and replace: `redis+sentinel://HOST,HOST/MASTER`.
    #[non_exhaustive]
    Sentinel {
        /// The Sentinels.
        sentinels: Vec<HostPort>,
        /// The name by which they know the master.
        master: String,
        /// The user at the Sentinels.
        user: Option<String>,
        /// The password at the Sentinels.
        password: Option<Secret>,
    },
    /// A cluster, by some of its nodes: `redis+cluster://HOST,HOST`.
    Cluster(Vec<HostPort>),
}

/// How an exclusive lock looks to clients that are not leasehold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// As Redisson's `RLock` and `RFencedLock` have it: a hash of the owner, with its channel and
    /// its counter of tokens.
    Redisson,
    /// As the Redis documentation has it: a string that `SET NX PX` makes and its owner alone
    /// deletes. For redis-py and every other such client.
    Plain,
}

impl Layout {
    pub(crate) const fn letter(self) -> &'static [u8] {
        match self {
            Layout::Redisson => b"r",
            Layout::Plain => b"p",
        }
    }
}

/// When a grant counts as made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Durability {
    /// When the master has it: `durability=local`.
    Local,
    /// When this many replicas have it, too: `durability=wait=N`.
    Wait(u32),
    /// When the master and this many replicas have it on disk: `durability=waitaof` or
    /// `waitaof=N`; from Redis 7.2 on.
    WaitAof(u32),
}

impl RedisConfig {
    /// One server, without a password.
    pub fn new(host: impl Into<String>, port: u16) -> RedisConfig {
        let host = HostPort { host: host.into(), port: Some(port) };
        RedisConfig::of(Servers::Single(host))
    }

    fn of(servers: Servers) -> RedisConfig {
        RedisConfig {
            servers,
            user: None,
            password: None,
            db: 0,
            tls: None,
            layout: Layout::Redisson,
            durability: Durability::Local,
            drift: Drift::Tenth,
            epoch: Epoch(0),
            connect_within: Duration::from_secs(10),
            first_term: FIRST_TERM,
            push_min: PUSH_MIN,
        }
    }

    /// Reads a URL: `redis://` or, with TLS, `rediss://`; `redis+sentinel://` and
    /// `redis+cluster://` (`rediss+…` likewise).
    ///
    /// # Errors
    ///
    /// `Config` saying what is wrong, without the password.
    pub fn from_url(text: &str) -> Result<RedisConfig> {
        let mut url = StoreUrl::parse(text)?;
        let (kind, shape) = match url.scheme.split_once('+') {
            Some((kind, shape)) => (kind.to_owned(), Some(shape.to_owned())),
            None => (url.scheme.clone(), None),
        };
        if !matches!(kind.as_str(), "redis" | "rediss" | "valkey" | "valkeys") {
            return Err(bad(format!("`{}` is no scheme of this store", shown(&kind, 20))));
        }
        let (servers, db) = servers(&mut url, shape.as_deref())?;
        let mut config = RedisConfig::of(servers);
        config.db = db;
        config.user.clone_from(&url.user);
        config.password.clone_from(&url.password);
        let options = url.take_tls()?;
        config.tls = match (kind.ends_with('s') && kind != "redis", options) {
            (true, options) => Some(options.unwrap_or_default()),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(bad("an option of TLS is given without TLS".into())
                    .advise("write `rediss` in place of `redis`"));
            }
        };
        if let Some(layout) = url.take("layout")? {
            config.layout = layout_of(&layout)?;
        }
        if let Some(durability) = url.take("durability")? {
            config.durability = durability_of(&durability)?;
        }
        if let Some(drift) = url.take("drift")? {
            config.drift = drift_of(&drift)?;
        }
        config.epoch = url.take_epoch()?;
        url.finish(OPTIONS)?;
        Ok(config)
    }

    /// The URL, without secrets.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let user = self.user.as_ref().map(|user| format!("{}@", escaped(user))).unwrap_or_default();
        let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
        let mut text = match &self.servers {
            Servers::Single(host) => format!("{scheme}://{user}{host}{db}"),
            Servers::Sentinel { sentinels, master, .. } => {
                let hosts = joined(sentinels);
                let db = if master.contains('/') { format!("/{}", self.db) } else { db };
                format!("{scheme}+sentinel://{user}{hosts}/{}{db}", escaped(master))
            }
            Servers::Cluster(seeds) => format!("{scheme}+cluster://{user}{}", joined(seeds)),
        };
        let mut options = Vec::new();
        if self.layout == Layout::Plain {
            options.push("layout=plain".to_owned());
        }
        match self.durability {
            Durability::Local => {}
            Durability::Wait(n) => options.push(format!("durability=wait={n}")),
            Durability::WaitAof(0) => options.push("durability=waitaof".to_owned()),
            Durability::WaitAof(n) => options.push(format!("durability=waitaof={n}")),
        }
        if self.drift == Drift::Vouched {
            options.push("drift=vouched".to_owned());
        }
        if self.epoch != Epoch(0) {
            options.push(format!("epoch={}", self.epoch));
        }
        if !options.is_empty() {
            text.push('?');
            text.push_str(&options.join("&"));
        }
        text
    }
}

fn servers(url: &mut StoreUrl, shape: Option<&str>) -> Result<(Servers, u32)> {
    let path = url.path.clone();
    let hosts = url.hosts.clone();
    match shape {
        None => match <[HostPort; 1]>::try_from(hosts) {
            Ok([host]) => Ok((Servers::Single(host), db_of(&path)?)),
            Err(_) => Err(bad("more than one server is named".into())
                .advise("write `redis+sentinel` or `redis+cluster` in place of `redis`")),
        },
        Some("sentinel") => {
            // A master's name may hold a `/` itself: the database is a number after the last one.
            let is_db = |db: &str| !db.is_empty() && db.bytes().all(|b| b.is_ascii_digit());
            let (master, db) =
                path.rsplit_once('/').filter(|(_, db)| is_db(db)).unwrap_or((&path, ""));
            if master.is_empty() {
                return Err(bad("no master is named".into())
                    .advise("write its name as the path: redis+sentinel://HOST,HOST/MASTER"));
            }
            let user = url.take("sentinel_user")?;
            let password = url.take("sentinel_password")?.map(Secret::new);
            let master = master.to_owned();
            let db = db_of(db)?;
            Ok((Servers::Sentinel { sentinels: hosts, master, user, password }, db))
        }
        Some("cluster") if db_of(&path)? != 0 => {
            Err(bad("a cluster has only the database 0".into()))
        }
        Some("cluster") => Ok((Servers::Cluster(hosts), 0)),
        Some(other) => Err(bad(format!("`+{}` is unknown", shown(other, 20)))
            .advise("write `+sentinel` or `+cluster`")),
    }
}

fn db_of(path: &str) -> Result<u32> {
    if path.is_empty() {
        return Ok(0);
    }
    let plain = path.bytes().all(|b| b.is_ascii_digit());
    let db = if plain { path.parse().ok() } else { None };
    db.ok_or_else(|| bad(format!("`/{}` is no number of a database", shown(path, 20))))
}

fn layout_of(text: &str) -> Result<Layout> {
    match text {
        "redisson" => Ok(Layout::Redisson),
        "plain" => Ok(Layout::Plain),
        _ => Err(bad(format!("`layout={}` is unknown: want redisson or plain", shown(text, 20)))),
    }
}

fn durability_of(text: &str) -> Result<Durability> {
    let (word, count) = text.split_once('=').unwrap_or((text, ""));
    let number = || count.parse::<u32>().ok().filter(|n| (1..=100).contains(n));
    let durability = match (word, count) {
        ("local", "") => Some(Durability::Local),
        ("waitaof", "") => Some(Durability::WaitAof(0)),
        ("wait", _) => number().map(Durability::Wait),
        ("waitaof", _) => number().map(Durability::WaitAof),
        _ => None,
    };
    durability.ok_or_else(|| {
        let text = shown(text, 20);
        bad(format!("`durability={text}` is unknown: want local, wait=N, waitaof or waitaof=N"))
    })
}

fn drift_of(text: &str) -> Result<Drift> {
    match text {
        "tenth" => Ok(Drift::Tenth),
        "vouched" => Ok(Drift::Vouched),
        _ => Err(bad(format!("`drift={}` is unknown: want tenth or vouched", shown(text, 20)))),
    }
}

fn joined(hosts: &[HostPort]) -> String {
    hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",")
}

fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-~".contains(&b);
    let mut out = String::new();
    for byte in text.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "read the store's URL", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_survive() {
        for url in [
            "redis://h",
            "redis://us%40er@h:1/3?layout=plain&epoch=2",
            "rediss+cluster://a:1,b:2?drift=vouched",
            "redis+sentinel://a,b:26380/my%2Fmaster/4?durability=wait=2",
            "redis://[::1]:7?durability=waitaof",
        ] {
            let config = RedisConfig::from_url(url).unwrap();
            let again = RedisConfig::from_url(&config.url()).unwrap();
            assert_eq!(again, config, "{url} and {}", config.url());
        }
        let config = RedisConfig::from_url("redis://:pw@h?durability=waitaof=1").unwrap();
        assert_eq!(config.password.as_ref().map(Secret::expose), Some("pw"));
        assert_eq!(config.durability, Durability::WaitAof(1));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, said) in [
            ("redis://a,b", "redis+sentinel"),
            ("redis://h/x", "database"),
            ("redis+cluster://h/1", "only the database 0"),
            ("redis+sentinel://h", "no master"),
            ("redis+x://h", "+x"),
            ("etcd://h", "etcd"),
            ("redis://h?layout=java", "layout=java"),
            ("redis://h?durability=wait", "durability=wait"),
            ("redis://h?durability=wait=0", "durability=wait=0"),
            ("redis://h?drift=none", "drift=none"),
            ("redis://h?ca=/x", "without TLS"),
            ("redis://h?mdoe=1", "mdoe"),
        ] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(said), "{url}: {error}");
        }
    }
}
