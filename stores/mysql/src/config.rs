//! Where the database is and how it is reached.

use std::time::Duration;

use leasehold_core::{Drift, Epoch, Error, ErrorKind, Result};
use leasehold_net::{HostPort, Secret, StoreUrl, Tls};

/// How waiters of other processes are woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wake {
    /// By one poller a client, which asks for all that it waits for in one statement.
    #[default]
    Poll,
    /// Also by a named lock of the server (`GET_LOCK`) that each claim keeps and its successor
    /// waits for. It costs a connection for each of the first few waiting claims of a client.
    GetLock,
}

/// Where the database is and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MysqlConfig {
    /// The servers, tried in order; the first that can be written is used. Usually one.
    pub hosts: Vec<HostPort>,
    /// Who logs in.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The database with leasehold's tables.
    pub database: String,
    /// TLS, or `None` for plain connections.
    pub tls: Option<Tls>,
    /// Which history the tokens belong to; see [`Epoch`].
    pub epoch: Epoch,
    /// How much the server's clock may gain on ours within a term.
    pub drift: Drift,
    /// How waiters of other processes are woken.
    pub wake: Wake,
    /// Whether missing tables are made; else they are asked for.
    pub create_tables: bool,
    /// For how long [`connect`](crate::MysqlStore::connect) tries to reach a server.
    pub connect_within: Duration,
}

/// The usual port.
pub(crate) const PORT: u16 = 3306;
const OPTIONS: &str =
    "tls, ca, cert, key, server_name, epoch, drift, wake, create or connect_within_ms";

impl MysqlConfig {
    /// The database of this name at this host.
    pub fn new(host: impl Into<String>, database: impl Into<String>) -> MysqlConfig {
        MysqlConfig {
            hosts: vec![HostPort { host: host.into(), port: None }],
            user: None,
            password: None,
            database: database.into(),
            tls: None,
            epoch: Epoch(0),
            drift: Drift::Tenth,
            wake: Wake::Poll,
            create_tables: true,
            connect_within: Duration::from_secs(10),
        }
    }

    /// Reads `mysql://USER:PASSWORD@HOST:PORT/DATABASE?option=value`; `mariadb://` is the same.
    ///
    /// ```
    /// use leasehold_mysql::{MysqlConfig, Wake};
    ///
    /// let config = MysqlConfig::from_url("mysql://app:s3cret@db1,db2:3307/locks?wake=get_lock")?;
    /// assert_eq!(config.database, "locks");
    /// assert_eq!(config.wake, Wake::GetLock);
    /// assert_eq!(config.url(), "mysql://app@db1,db2:3307/locks?wake=get_lock");
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Config` for another scheme, no database, an unknown option or a value out of bounds.
    pub fn from_url(url: &str) -> Result<MysqlConfig> {
        let mut url = StoreUrl::parse(url)?;
        if !matches!(url.scheme.as_str(), "mysql" | "mariadb") {
            return Err(bad("its URL does not begin with `mysql://` or `mariadb://`"));
        }
        if url.path.is_empty() || url.path.contains('/') {
            return Err(bad("its URL names no database: want mysql://USER@HOST/DATABASE"));
        }
        let tls = url.take_tls()?;
        let tls = match url.take("tls")?.as_deref() {
            None => tls,
            Some("on") => Some(tls.unwrap_or_default()),
            Some("off") if tls.is_none() => None,
            Some("off") => return Err(bad("`tls=off` goes with no certificate")),
            Some(_) => return Err(bad("`tls` is out of bounds: want on or off")),
        };
        let drift = match url.take("drift")?.as_deref() {
            None | Some("tenth") => Drift::Tenth,
            Some("vouched") => Drift::Vouched,
            Some(_) => return Err(bad("`drift` is out of bounds: want tenth or vouched")),
        };
        let wake = match url.take("wake")?.as_deref() {
            None | Some("poll") => Wake::Poll,
            Some("get_lock") => Wake::GetLock,
            Some(_) => return Err(bad("`wake` is out of bounds: want poll or get_lock")),
        };
        let create_tables = match url.take("create")?.as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(_) => return Err(bad("`create` is out of bounds: want on or off")),
        };
        let within = url.take_parsed::<u32>("connect_within_ms", "milliseconds")?;
        let epoch = url.take_epoch()?;
        let config = MysqlConfig {
            hosts: url.hosts.clone(),
            user: url.user.clone(),
            password: url.password.clone(),
            database: url.path.clone(),
            tls,
            epoch,
            drift,
            wake,
            create_tables,
            connect_within: Duration::from_millis(within.unwrap_or(10_000).into()),
        };
        url.finish(OPTIONS)?;
        Ok(config)
    }

    /// The URL that opens the same store, without its password.
    pub fn url(&self) -> String {
        let user = self.user.as_deref().map_or(String::new(), |user| format!("{}@", encoded(user)));
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        let mut url = format!("mysql://{user}{}/{}", hosts.join(","), encoded(&self.database));
        let mut separator = '?';
        let mut add = |key: &str, value: &str| {
            url.push(separator);
            separator = '&';
            url.push_str(key);
            url.push('=');
            url.push_str(&encoded(value));
        };
        if let Some(tls) = &self.tls {
            add("tls", "on");
            for (key, path) in [("ca", &tls.ca), ("cert", &tls.cert), ("key", &tls.key)] {
                if let Some(path) = path {
                    add(key, &path.to_string_lossy());
                }
            }
            if let Some(name) = &tls.server_name {
                add("server_name", name);
            }
        }
        if self.epoch != Epoch(0) {
            add("epoch", &self.epoch.to_string());
        }
        if self.drift == Drift::Vouched {
            add("drift", "vouched");
        }
        if self.wake == Wake::GetLock {
            add("wake", "get_lock");
        }
        if !self.create_tables {
            add("create", "off");
        }
        url
    }
}

fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn bad(detail: &str) -> Error {
    Error::new(ErrorKind::Config, "open the store", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_strictly_and_survive() {
        for bad in [
            "redis://h/d",
            "mysql://h",
            "mysql://h/",
            "mysql://h/a/b",
            "mysql://h/d?wkae=poll",
            "mysql://h/d?wake=shout",
            "mysql://h/d?tls=maybe",
            "mysql://h/d?tls=off&ca=/x",
            "mysql://h/d?drift=none",
            "mysql://h/d?create=1",
            "mysql://h/d?epoch=-1",
            "mysql://h/d?connect_within_ms=soon",
        ] {
            let error = MysqlConfig::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
        }
        for url in [
            "mysql://u@h/d",
            "mysql://h:3307,i/d?tls=on&epoch=3",
            "mysql://u%40x@h/d%20e?tls=on&ca=/a%20b&server_name=db&drift=vouched&create=off",
            "mysql://h/d?wake=get_lock",
        ] {
            let config = MysqlConfig::from_url(url).unwrap();
            assert_eq!(config.url(), url);
            assert_eq!(MysqlConfig::from_url(&config.url()).unwrap(), config);
        }
    }

    #[test]
    fn the_password_never_shows() {
        let config = MysqlConfig::from_url("mariadb://u:s3cret@h/d").unwrap();
        assert!(!format!("{config:?} {}", config.url()).contains("s3cret"));
        assert_eq!(config.password.unwrap().expose(), "s3cret");
    }
}
