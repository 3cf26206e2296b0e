//! Where the cluster is, who asks, and how names become keys.

use std::time::Duration;

use leasehold_core::{Drift, Epoch, Error, ErrorKind, Result};
use leasehold_net::{HostPort, Secret, StoreUrl, Tls};

/// etcd's usual port for clients.
pub(crate) const PORT: u16 = 2379;

/// How names of resources become keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Names {
    /// Bytes that mean something in a key, `/` and `.` above all, are written as `%XX`: every name
    /// is a resource of its own. A name of letters, digits, `_`, `-`, `:`, `@`, `+`, `,`, `=` and
    /// `~` is its own key, and shared with foreign clients that use it.
    #[default]
    Escaped,
    /// The name is the key, as foreign clients write it. Then `a` waits for all of `a/b`.
    Raw,
}

/// Where the cluster is and how it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdConfig {
    /// The members to ask, in order; one is asked at a time, and the next where it fails.
    pub hosts: Vec<HostPort>,
    /// Certificates; `None` for connections without TLS.
    pub tls: Option<Tls>,
    /// The user, where the cluster asks for one.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<Secret>,
    /// What every key begins with, as with `clientv3/namespace`: a part of the keys for us alone.
    pub prefix: String,
    /// How names become keys.
    pub names: Names,
    /// Which history the tokens belong to; see [`Epoch`].
    pub epoch: Epoch,
    /// What the clocks of the members may gain on ours.
    pub drift: Drift,
    /// For how long `connect` tries to reach a member.
    pub connect_within: Duration,
}

impl EtcdConfig {
    /// One member, without TLS and without a user.
    pub fn new(host: impl Into<String>, port: u16) -> EtcdConfig {
        EtcdConfig {
            hosts: vec![HostPort { host: host.into(), port: Some(port) }],
            tls: None,
            user: None,
            password: None,
            prefix: String::new(),
            names: Names::default(),
            epoch: Epoch(0),
            drift: Drift::Tenth,
            connect_within: Duration::from_secs(10),
        }
    }

    /// Reads `etcd://user:password@host:2379,host/PREFIX?ca=PATH&names=raw`; `etcds://` for TLS
    /// with the system's roots.
    ///
    /// ```
    /// use leasehold_etcd::{EtcdConfig, Names};
    ///
    /// let config = EtcdConfig::from_url("etcds://app:s3cret@e1,e2:3379/prod/?names=raw&epoch=2")?;
    /// assert!(config.tls.is_some());
    /// assert_eq!(config.prefix, "prod/");
    /// assert_eq!(config.names, Names::Raw);
    /// assert_eq!(config.url(), "etcds://app@e1,e2:3379/prod/?names=raw&epoch=2");
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Config` for another scheme, an unknown option or a value out of bounds.
    pub fn from_url(url: &str) -> Result<EtcdConfig> {
        let mut url = StoreUrl::parse(url)?;
        let tls = url.take_tls()?;
        let tls = match url.scheme.as_str() {
            "etcd" => tls,
            "etcds" => Some(tls.unwrap_or_default()),
            _ => return Err(bad("its URL begins with neither `etcd://` nor `etcds://`".into())),
        };
        let names = match url.take("names")?.as_deref() {
            None | Some("escaped") => Names::Escaped,
            Some("raw") => Names::Raw,
            Some(other) => {
                let other = leasehold_core::shown(other, 20);
                return Err(bad(format!("`names={other}` is unknown: want escaped or raw")));
            }
        };
        let drift = match url.take("drift")?.as_deref() {
            None => Drift::Tenth,
            Some("vouched") => Drift::Vouched,
            Some(other) => {
                let other = leasehold_core::shown(other, 20);
                return Err(bad(format!("`drift={other}` is unknown: want vouched")));
            }
        };
        // A user's password may come from elsewhere.
        if url.user.is_none() && url.password.is_some() {
            return Err(bad("its URL has a password without a user".into()));
        }
        let config = EtcdConfig {
            hosts: url.hosts.clone(),
            tls,
            user: url.user.clone(),
            password: url.password.clone(),
            prefix: url.path.clone(),
            names,
            epoch: url.take_epoch()?,
            drift,
            connect_within: Duration::from_secs(10),
        };
        url.finish("names, drift, epoch, ca, cert, key or server_name")?;
        Ok(config)
    }

    /// The URL that opens the same store, without its password.
    pub fn url(&self) -> String {
        use std::fmt::Write as _;
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let mut url = format!("{scheme}://");
        if let Some(user) = &self.user {
            let _ = write!(url, "{}@", encoded(user));
        }
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        url.push_str(&hosts.join(","));
        if !self.prefix.is_empty() {
            let _ = write!(url, "/{}", encoded(&self.prefix));
        }
        let mut options = Vec::new();
        if self.names == Names::Raw {
            options.push("names=raw".to_owned());
        }
        if self.drift == Drift::Vouched {
            options.push("drift=vouched".into());
        }
        if self.epoch != Epoch(0) {
            options.push(format!("epoch={}", self.epoch));
        }
        if let Some(tls) = &self.tls {
            let paths = [("ca", &tls.ca), ("cert", &tls.cert), ("key", &tls.key)];
            for (name, path) in paths {
                if let Some(path) = path {
                    options.push(format!("{name}={}", encoded(&path.to_string_lossy())));
                }
            }
            if let Some(name) = &tls.server_name {
                options.push(format!("server_name={}", encoded(name)));
            }
        }
        for (at, option) in options.iter().enumerate() {
            let _ = write!(url, "{}{option}", if at == 0 { '?' } else { '&' });
        }
        url
    }
}

/// With every byte escaped that means something in a URL.
fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

pub(crate) fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "open the store", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_strictly_and_survive() {
        for bad in [
            "redis://h",
            "etcd://h?names=odd",
            "etcd://h?drift=none",
            "etcd://h?nmaes=raw",
            "etcd://:s3cret@h",
            "etcd://h?epoch=-1",
        ] {
            let error = EtcdConfig::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{bad}");
        }
        for url in [
            "etcd://h",
            "etcd://h:1,[::1]:2/a%20b/c?names=raw&drift=vouched&epoch=3",
            "etcds://h?ca=/x&cert=/y&key=/z&server_name=n",
        ] {
            let config = EtcdConfig::from_url(url).unwrap();
            assert_eq!(config.url(), url);
            assert_eq!(EtcdConfig::from_url(&config.url()).unwrap(), config);
        }
    }

    #[test]
    fn the_password_never_shows() {
        let config = EtcdConfig::from_url("etcd://u:s3cret@h").unwrap();
        assert!(!format!("{config:?} {}", config.url()).contains("s3cret"));
    }
}
