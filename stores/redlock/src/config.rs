//! Where the members are, and how they are used.

use std::time::Duration;

use leasehold_core::{Drift, Epoch, Error, ErrorKind, Result, shown};
use leasehold_net::{HostPort, Secret, StoreUrl, Tls};
use leasehold_redis::{Layout, RedisConfig, Servers};

use crate::store::TERM_MIN;

/// The options that a URL may have.
const OPTIONS: &str = "layout, max_term, drift, epoch, ca, cert, key and server_name";
/// The longest term, unless another is chosen.
const MAX_TERM: Duration = Duration::from_secs(60);
/// What may be chosen for it.
const MAX_TERM_BOUNDS: (u64, u64) = (1, 24 * 3600);
/// The fewest members of which a minority may fail.
const MEMBERS_MIN: usize = 3;
/// More of them cost more than they bring.
const MEMBERS_MAX: usize = 31;

/// How the members are reached and used: by [`RedlockConfig::from_url`], or field by field.
///
/// ```
/// use leasehold_redlock::RedlockConfig;
///
/// let config = RedlockConfig::from_url("redlock://app:s3cret@a,b,c:6380?max_term=30")?;
/// assert_eq!(config.members.len(), 3);
/// assert!(!format!("{config:?}").contains("s3cret"));
/// assert_eq!(config.url(), "redlock://app@a,b,c:6380?max_term=30");
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RedlockConfig {
    /// The servers, each by itself: no two of them replicate one another.
    pub members: Vec<HostPort>,
    /// The user, the same at all.
    pub user: Option<String>,
    /// The password, the same at all.
    pub password: Option<Secret>,
    /// The database at each.
    pub db: u32,
    /// TLS, by `redlocks`.
    pub tls: Option<Tls>,
    /// How an exclusive lock looks to clients that are not leasehold.
    pub layout: Layout,
    /// The longest term that is granted, and so for how long a member that may have forgotten
    /// something counts in no majority.
    pub max_term: Duration,
    /// How much a member's clock may gain on ours.
    pub drift: Drift,
    /// Which history the tokens belong to.
    pub epoch: Epoch,
    /// For how long the first connections are tried.
    pub connect_within: Duration,
}

impl RedlockConfig {
    /// These members, without a password.
    pub fn new(members: Vec<HostPort>) -> RedlockConfig {
        RedlockConfig {
            members,
            user: None,
            password: None,
            db: 0,
            tls: None,
            layout: Layout::Plain,
            max_term: MAX_TERM,
            drift: Drift::Tenth,
            epoch: Epoch(0),
            connect_within: Duration::from_secs(10),
        }
    }

    /// Reads a URL: `redlock://HOST,HOST,HOST/DB` or, with TLS, `redlocks://`.
    ///
    /// # Errors
    ///
    /// `Config` saying what is wrong, without the password.
    pub fn from_url(text: &str) -> Result<RedlockConfig> {
        let mut url = StoreUrl::parse(text)?;
        if !matches!(url.scheme.as_str(), "redlock" | "redlocks") {
            let scheme = shown(&url.scheme, 20);
            return Err(bad(format!("`{scheme}` is no scheme of this store")));
        }
        let mut config = RedlockConfig::new(url.hosts.clone());
        config.db = db_of(&url.path)?;
        config.user.clone_from(&url.user);
        config.password.clone_from(&url.password);
        config.tls = match (url.scheme == "redlocks", url.take_tls()?) {
            (true, options) => Some(options.unwrap_or_default()),
            (false, None) => None,
            (false, Some(_)) => {
                return Err(bad("an option of TLS is given without TLS".into())
                    .advise("write `redlocks` in place of `redlock`"));
            }
        };
        if let Some(layout) = url.take("layout")? {
            config.layout = layout_of(&layout)?;
        }
        if let Some(drift) = url.take("drift")? {
            config.drift = drift_of(&drift)?;
        }
        if let Some(seconds) = url.take_parsed::<u64>("max_term", "a number of seconds")? {
            config.max_term = Duration::from_secs(seconds);
        }
        config.epoch = url.take_epoch()?;
        url.finish(OPTIONS)?;
        config.check()?;
        Ok(config)
    }

    /// Refuses what can be no Redlock.
    pub(crate) fn check(&self) -> Result<()> {
        let count = self.members.len();
        if count < MEMBERS_MIN {
            let detail = format!("{count} members are named: want at least {MEMBERS_MIN}");
            return Err(bad(detail).advise(
                "name an odd number of independent servers, five for example; for one \
                         server or a replicated one write `redis`",
            ));
        }
        if count > MEMBERS_MAX {
            return Err(bad(format!("{count} members are named: want at most {MEMBERS_MAX}")));
        }
        for (at, member) in self.members.iter().enumerate() {
            if self.members[..at].iter().any(|other| other.or_port(PORT) == member.or_port(PORT)) {
                let detail = format!("the member `{member}` is named twice");
                return Err(bad(detail).advise("a majority has to be of different servers"));
            }
        }
        let (least, most) = MAX_TERM_BOUNDS;
        if self.max_term < TERM_MIN || !(least..=most).contains(&self.max_term.as_secs()) {
            let detail = format!("max_term is {:?}: want {least} s to {most} s", self.max_term);
            return Err(bad(detail));
        }
        Ok(())
    }

    /// How many members are a majority.
    pub(crate) fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// One member alone.
    pub(crate) fn member(&self, host: &HostPort) -> RedisConfig {
        let (name, port) = host.or_port(PORT);
        let mut config = RedisConfig::new(name, port);
        config.servers = Servers::Single(host.clone());
        config.user.clone_from(&self.user);
        config.password.clone_from(&self.password);
        config.db = self.db;
        config.tls.clone_from(&self.tls);
        config.layout = self.layout;
        config.drift = self.drift;
        config.epoch = self.epoch;
        config
    }

    /// The URL, without secrets.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "redlocks" } else { "redlock" };
        let user = self.user.as_ref().map(|user| format!("{}@", escaped(user))).unwrap_or_default();
        let hosts: Vec<String> = self.members.iter().map(HostPort::to_string).collect();
        let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
        let mut options = Vec::new();
        if self.layout == Layout::Redisson {
            options.push("layout=redisson".to_owned());
        }
        if self.max_term != MAX_TERM {
            options.push(format!("max_term={}", self.max_term.as_secs()));
        }
        if self.drift == Drift::Vouched {
            options.push("drift=vouched".to_owned());
        }
        if self.epoch != Epoch(0) {
            options.push(format!("epoch={}", self.epoch));
        }
        let question = if options.is_empty() { "" } else { "?" };
        format!("{scheme}://{user}{}{db}{question}{}", hosts.join(","), options.join("&"))
    }
}

/// The port where none is named.
const PORT: u16 = 6379;

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
        _ => Err(bad(format!("`layout={}` is unknown: want plain or redisson", shown(text, 20)))),
    }
}

fn drift_of(text: &str) -> Result<Drift> {
    match text {
        "tenth" => Ok(Drift::Tenth),
        "vouched" => Ok(Drift::Vouched),
        _ => Err(bad(format!("`drift={}` is unknown: want tenth or vouched", shown(text, 20)))),
    }
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
            "redlock://a,b,c",
            "redlock://us%40er@a:1,b:2,c:3,d,e/3?layout=redisson&max_term=30&epoch=2",
            "redlocks://a,b,[::1]:7?drift=vouched",
        ] {
            let config = RedlockConfig::from_url(url).unwrap();
            assert_eq!(config.url(), url);
            assert_eq!(RedlockConfig::from_url(&config.url()).unwrap(), config);
        }
        let config = RedlockConfig::from_url("redlock://:pw@a,b,c").unwrap();
        assert_eq!(config.member(&config.members[1]).password, Some(Secret::new("pw")));
        assert_eq!(config.majority(), 2);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (url, said) in [
            ("redlock://a", "at least 3"),
            ("redlock://a,b", "at least 3"),
            ("redlock://a,b,a:6379", "twice"),
            ("redis://a,b,c", "redis"),
            ("redlock://a,b,c/x", "database"),
            ("redlock://a,b,c?layout=java", "layout=java"),
            ("redlock://a,b,c?max_term=0", "max_term"),
            ("redlock://a,b,c?max_term=x", "max_term"),
            ("redlock://a,b,c?durability=wait=1", "durability"),
            ("redlock://a,b,c?ca=/x", "without TLS"),
        ] {
            let error = RedlockConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(said), "{url}: {error}");
        }
    }
}
