//! Where ZooKeeper is, and how its locks are laid out.

use std::time::Duration;

use leasehold_core::{Drift, Epoch, Error, ErrorKind, Result};
use leasehold_net::{HostPort, Secret, StoreUrl, Tls};

use crate::wire::Acl;

/// How contenders are named, and so with whom locks are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Layout {
    /// As Curator's `InterProcessMutex` names them. Shared claims and permits count as exclusive
    /// ones to foreign clients.
    #[default]
    Mutex,
    /// As Curator's `InterProcessReadWriteLock` names them. Permits count as exclusive claims to
    /// foreign clients.
    ReadWrite,
}

/// How names of resources become paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Naming {
    /// Every name is one node below the root, escaped where needed.
    #[default]
    Escaped,
    /// A name is the path below the root as it stands; what cannot be a path is refused.
    Raw,
}

/// Where ZooKeeper is and how it is used.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ZookeeperConfig {
    /// The servers; port 2181 where none is named.
    pub hosts: Vec<HostPort>,
    /// The path below which everything is, without a `/` at its end; empty for the top.
    pub root: String,
    /// For the scheme `digest`.
    pub user: Option<String>,
    /// For the scheme `digest`.
    pub password: Option<Secret>,
    /// Who may use the nodes that are made.
    pub acl: Acl,
    /// How contenders are named.
    pub layout: Layout,
    /// How names become paths.
    pub naming: Naming,
    /// The session timeout that is asked for; the server bounds it. No term can be longer, and a
    /// process that dies keeps its locks for so long.
    pub session: Duration,
    /// Which history the tokens belong to; see [`Epoch`].
    pub epoch: Epoch,
    /// How much a server's clock may gain on ours.
    pub drift: Drift,
    /// Whether connections are by TLS, and with which certificates.
    pub tls: Option<Tls>,
    /// For how long a first connection is tried.
    pub connect_within: Duration,
    /// The largest answer of a server that is taken in, in bytes.
    pub answer_max: usize,
}

const OPTIONS: &str = "session, layout, names, acl, drift, epoch, ca, cert, key or server_name";

impl ZookeeperConfig {
    /// One server, with its usual port, below `/leasehold`.
    pub fn new(host: &str) -> ZookeeperConfig {
        ZookeeperConfig {
            hosts: vec![HostPort { host: host.into(), port: None }],
            root: "/leasehold".into(),
            user: None,
            password: None,
            acl: Acl::Open,
            layout: Layout::default(),
            naming: Naming::default(),
            session: Duration::from_secs(30),
            epoch: Epoch(0),
            drift: Drift::Tenth,
            tls: None,
            connect_within: Duration::from_secs(10),
            answer_max: 16 << 20,
        }
    }

    /// Reads `zookeeper://user:password@a:2181,b/root?session=30s&layout=read-write`.
    ///
    /// Options: `session=30s`, `layout=mutex` or `read-write`, `names=escaped` or `raw`, `acl=open`
    /// or `creator` (the default with a user), `drift=vouched`, `epoch=N`, and `ca`, `cert`, `key`,
    /// `server_name` for TLS, which `zookeepers://` asks for with the system's roots.
    ///
    /// ```
    /// use leasehold_zookeeper::{Layout, ZookeeperConfig};
    ///
    /// let url = "zookeeper://a,b:2182/app/locks?layout=read-write&session=10s";
    /// let config = ZookeeperConfig::from_url(url)?;
    /// assert_eq!(config.root, "/app/locks");
    /// assert_eq!(config.layout, Layout::ReadWrite);
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Config` for another scheme, a path that cannot be, an unknown option or a value out of
    /// bounds.
    pub fn from_url(url: &str) -> Result<ZookeeperConfig> {
        let mut url = StoreUrl::parse(url)?;
        let secure = match url.scheme.as_str() {
            "zookeeper" | "zk" => false,
            "zookeepers" => true,
            _ => return Err(bad("its scheme is not `zookeeper` or `zookeepers`".into())),
        };
        let mut config = ZookeeperConfig::new("");
        config.hosts.clone_from(&url.hosts);
        config.user.clone_from(&url.user);
        config.password.clone_from(&url.password);
        if !url.path.trim_matches('/').is_empty() {
            config.root = format!("/{}", url.path.trim_matches('/'));
        }
        crate::names::check_path(&config.root).map_err(|why| {
            bad(format!("its path {:?} is no path of ZooKeeper: {why}", config.root))
        })?;
        if let Some(span) = url.take("session")? {
            config.session = span_of(&span)?;
        }
        match url.take("layout")?.as_deref() {
            None | Some("mutex") => {}
            Some("read-write") => config.layout = Layout::ReadWrite,
            Some(_) => {
                return Err(bad("`layout` is out of bounds: want mutex or read-write".into()));
            }
        }
        match url.take("names")?.as_deref() {
            None | Some("escaped") => {}
            Some("raw") => config.naming = Naming::Raw,
            Some(_) => return Err(bad("`names` is out of bounds: want escaped or raw".into())),
        }
        match url.take("acl")?.as_deref() {
            None if config.user.is_some() => config.acl = Acl::Creator,
            None | Some("open") => {}
            Some("creator") if config.user.is_some() => config.acl = Acl::Creator,
            Some("creator") => return Err(bad("`acl=creator` needs a user and a password".into())),
            Some(_) => return Err(bad("`acl` is out of bounds: want open or creator".into())),
        }
        match url.take("drift")?.as_deref() {
            None => {}
            Some("vouched") => config.drift = Drift::Vouched,
            Some(_) => return Err(bad("`drift` is out of bounds: want vouched".into())),
        }
        config.epoch = url.take_epoch()?;
        config.tls = url.take_tls()?;
        if secure && config.tls.is_none() {
            config.tls = Some(Tls::new());
        }
        url.finish(OPTIONS)?;
        Ok(config)
    }

    /// The URL that opens the same store, without the password.
    pub fn url(&self) -> String {
        use std::fmt::Write as _;
        let scheme = if self.tls.is_some() { "zookeepers" } else { "zookeeper" };
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let mut url = format!("{scheme}://{user}{}{}", hosts.join(","), self.root);
        let mut separator = '?';
        let mut option = |text: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = write!(url, "{separator}{text}");
            separator = '&';
        };
        if self.session != Duration::from_secs(30) {
            option(format_args!("session={}ms", self.session.as_millis()));
        }
        if self.layout == Layout::ReadWrite {
            option(format_args!("layout=read-write"));
        }
        if self.naming == Naming::Raw {
            option(format_args!("names=raw"));
        }
        if self.epoch != Epoch(0) {
            option(format_args!("epoch={}", self.epoch));
        }
        url
    }
}

/// `30s`, `1500ms`.
fn span_of(text: &str) -> Result<Duration> {
    let span = match text.strip_suffix("ms") {
        Some(number) => number.parse().ok().map(Duration::from_millis),
        None => text.strip_suffix('s').and_then(|n| n.parse().ok()).map(Duration::from_secs),
    };
    let fits = |span: &Duration| (Duration::from_millis(400)..=HOUR).contains(span);
    span.filter(fits).ok_or_else(|| {
        let text = leasehold_core::shown(text, 20);
        bad(format!("`session={text}` is out of bounds: want 400ms to 3600s"))
    })
}

const HOUR: Duration = Duration::from_secs(3600);

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "read the store's URL", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_strictly_and_survive_without_their_secret() {
        for url in [
            "redis://a",
            "zookeeper://a/x//y",
            "zookeeper://a/./y",
            "zookeeper://a/x?session=3",
            "zookeeper://a/x?session=1ms",
            "zookeeper://a/x?layout=kazoo",
            "zookeeper://a/x?names=odd",
            "zookeeper://a/x?acl=creator",
            "zookeeper://a/x?acl=",
            "zookeeper://a/x?seesion=30s",
        ] {
            let error = ZookeeperConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
        }
        let text = "zookeeper://u:s3cret@a:1,b/x/y?session=1500ms&layout=read-write&epoch=2";
        let config = ZookeeperConfig::from_url(text).unwrap();
        assert_eq!(config.acl, Acl::Creator);
        assert_eq!(config.url(), text.replace(":s3cret", ""));
        assert!(!format!("{config:?}").contains("s3cret"));
        assert_eq!(ZookeeperConfig::from_url("zookeeper://a").unwrap().root, "/leasehold");
    }
}
