//! The URLs of stores.

use std::fmt;
use std::str::FromStr;

use leasehold_core::{Epoch, Error, ErrorKind, Result, shown};

use crate::secret::Secret;
use crate::tls::Tls;

/// The longest URL that is read.
const URL_MAX: usize = 4096;
/// The most hosts in one URL.
const HOSTS_MAX: usize = 64;

/// A store's URL, read strictly: `scheme://user:password@host:port,host:port/path?option=value`.
///
/// Options are taken by name with [`StoreUrl::take`]; [`StoreUrl::finish`] then refuses those that
/// nobody knows. User, password, path and values may hold `%XX` escapes.
///
/// ```
/// use leasehold_net::StoreUrl;
///
/// let mut url = StoreUrl::parse("redis://app:s3cret@a,b:6380/2?layout=plain")?;
/// assert_eq!(url.scheme, "redis");
/// assert_eq!(url.hosts[1].port, Some(6380));
/// assert_eq!(url.path, "2");
/// assert_eq!(url.take("layout")?.as_deref(), Some("plain"));
/// url.finish("layout")?;
/// # Ok::<(), leasehold_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreUrl {
    /// What stands before `://`.
    pub scheme: String,
    /// The user, if one is named.
    pub user: Option<String>,
    /// The password, if one is given.
    pub password: Option<Secret>,
    /// The servers, in order; at least one.
    pub hosts: Vec<HostPort>,
    /// What stands after the first `/`, without it; may be empty.
    pub path: String,
    options: Vec<(String, String)>,
}

/// A server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostPort {
    /// A name or an address; an IPv6 address is without its brackets.
    pub host: String,
    /// The port, unless the store's usual one.
    pub port: Option<u16>,
}

impl HostPort {
    /// With the store's usual port where none is named.
    pub fn or_port(&self, usual: u16) -> (String, u16) {
        (self.host.clone(), self.port.unwrap_or(usual))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreUrl").field(&self.shown()).finish()
    }
}

impl StoreUrl {
    /// Reads a URL.
    ///
    /// # Errors
    ///
    /// `Config` saying what is wrong, without the password.
    pub fn parse(url: &str) -> Result<StoreUrl> {
        if url.len() > URL_MAX {
            return Err(bad(format!("the store's URL is longer than {URL_MAX} bytes")));
        }
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad("the store's URL has no `://` after its scheme".into()))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, "")))
        {
            None => (None, None),
            Some((user, password)) => (Some(decode(user)?), Some(decode(password)?)),
        };
        let hosts = hosts.split(',').map(host_port).collect::<Result<Vec<_>>>()?;
        if hosts.len() > HOSTS_MAX {
            return Err(bad(format!("the store's URL names more than {HOSTS_MAX} servers")));
        }
        let mut options: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if options.iter().any(|(known, _)| known == key) {
                return Err(bad(format!("the option `{}` is given twice", shown(key, 40))));
            }
            options.push((key.to_owned(), decode(value)?));
        }
        Ok(StoreUrl {
            scheme: scheme.to_owned(),
            user: user.filter(|user| !user.is_empty()),
            password: password.filter(|password| !password.is_empty()).map(Secret::new),
            hosts,
            path: decode(path)?,
            options,
        })
    }

    /// Takes the value of an option out.
    ///
    /// # Errors
    ///
    /// `Config` for an option without a value.
    pub fn take(&mut self, option: &str) -> Result<Option<String>> {
        let Some(at) = self.options.iter().position(|(key, _)| key == option) else {
            return Ok(None);
        };
        let (key, value) = self.options.remove(at);
        if value.is_empty() {
            return Err(bad(format!("the option `{key}` has no value")));
        }
        Ok(Some(value))
    }

    /// As [`StoreUrl::take`], read as a `T`; `want` says what is wanted.
    ///
    /// # Errors
    ///
    /// `Config` for another value.
    pub fn take_parsed<T: FromStr>(&mut self, option: &str, want: &str) -> Result<Option<T>> {
        let Some(value) = self.take(option)? else { return Ok(None) };
        let parsed = value.parse().map_err(|_| {
            bad(format!("`{option}={}` is out of bounds: want {want}", shown(&value, 40)))
        })?;
        Ok(Some(parsed))
    }

    /// Takes `epoch=N` out; 0 without one.
    ///
    /// # Errors
    ///
    /// `Config` for what is not a number of 32 bits.
    pub fn take_epoch(&mut self) -> Result<Epoch> {
        let epoch = self.take_parsed::<u32>("epoch", "0 to 4294967295")?;
        Ok(Epoch(epoch.unwrap_or(0)))
    }

    /// Takes `ca`, `cert`, `key` and `server_name` out; `None` where none of them is given.
    ///
    /// # Errors
    ///
    /// `Config` for one without a value.
    pub fn take_tls(&mut self) -> Result<Option<Tls>> {
        let tls = Tls {
            ca: self.take("ca")?.map(Into::into),
            cert: self.take("cert")?.map(Into::into),
            key: self.take("key")?.map(Into::into),
            server_name: self.take("server_name")?,
        };
        Ok(Some(tls).filter(|tls| *tls != Tls::default()))
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    ///
    /// `Config` naming an unknown option and, by `known`, the known ones.
    pub fn finish(self, known: &str) -> Result<()> {
        match self.options.first() {
            None => Ok(()),
            Some((key, _)) => Err(bad(format!(
                "the store's URL has the unknown option `{}`: want {known}",
                shown(key, 40)
            ))),
        }
    }

    /// The URL without its password.
    pub fn shown(&self) -> String {
        let mut text = format!("{}://", self.scheme);
        if let Some(user) = &self.user {
            text.push_str(&encode(user));
            text.push('@');
        }
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        text.push_str(&hosts.join(","));
        if !self.path.is_empty() {
            text.push('/');
            text.push_str(&encode(&self.path));
        }
        for (at, (key, value)) in self.options.iter().enumerate() {
            text.push(if at == 0 { '?' } else { '&' });
            text.push_str(&format!("{key}={}", encode(value)));
        }
        text
    }
}

fn host_port(text: &str) -> Result<HostPort> {
    // Not shown: a password that is not escaped ends up here.
    let unfit = || {
        bad("a server in the store's URL is no host or host:port".into())
            .advise("write `/`, `?`, `@` and `%` in a password as %2F, %3F, %40 and %25")
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(unfit)?;
            match after.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if after.is_empty() => (host, None),
                None => return Err(unfit()),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(is_fit) {
        return Err(unfit());
    }
    let port = port.map(str::parse::<u16>).transpose().map_err(|_| unfit())?;
    Ok(HostPort { host: host.to_owned(), port: port.filter(|&port| port != 0) })
}

fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|&b| char::from(b).to_digit(16));
        let value = digit(0).zip(digit(1)).and_then(|(h, l)| u8::try_from(h * 16 + l).ok());
        bytes.push(value.ok_or_else(|| {
            bad("the store's URL holds a `%` without two hexadecimal digits after it".into())
        })?);
        rest = rest.get(2..).unwrap_or_default();
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| bad("the store's URL is not UTF-8 once its escapes are read".into()))?;
    if text.contains(char::is_control) {
        return Err(bad("the store's URL holds a control character".into()));
    }
    Ok(text)
}

/// Writes what [`StoreUrl::parse`] reads back as this text, in a user, a path or a value.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "read the store's URL", detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_read() {
        let mut url =
            StoreUrl::parse("etcd://us%40er:p%3Aw@h1:2379,[::1]:2380,h3/a/b?ca=%2Fx&epoch=7")
                .unwrap();
        assert_eq!(url.user.as_deref(), Some("us@er"));
        assert_eq!(url.password.as_ref().map(Secret::expose), Some("p:w"));
        let hosts: Vec<String> = url.hosts.iter().map(HostPort::to_string).collect();
        assert_eq!(hosts, ["h1:2379", "[::1]:2380", "h3"]);
        assert_eq!(url.path, "a/b");
        assert_eq!(url.shown(), "etcd://us%40er@h1:2379,[::1]:2380,h3/a/b?ca=/x&epoch=7");
        assert_eq!(url.take_epoch().unwrap(), Epoch(7));
        assert_eq!(url.take_tls().unwrap().unwrap().ca, Some("/x".into()));
        url.finish("ca and epoch").unwrap();
    }

    #[test]
    fn what_is_wrong_is_refused_without_its_secret() {
        for url in [
            "redis",
            "redis:h",
            "redis://",
            "redis://h:x",
            "redis://h:70000",
            "redis://h,,i",
            "redis://h%",
            "redis://u:s3cret@h h/",
            "redis://u:s3cret%@h/",
            "redis://u:s3cret/x@h/",
            "redis://u:s3cret@h?a=1&a=2",
            "redis://[::1",
            "redis://h/%00",
        ] {
            let error = StoreUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
        }
        let url = StoreUrl::parse("redis://u:s3cret@h?mdoe=1").unwrap();
        assert!(!format!("{url:?}").contains("s3cret"));
        let error = url.finish("layout").unwrap_err();
        assert!(error.to_string().contains("`mdoe`"), "{error}");
        assert!(StoreUrl::parse("redis://h?epoch=").unwrap().take_epoch().is_err());
        assert!(StoreUrl::parse("redis://h?epoch=-1").unwrap().take_epoch().is_err());
    }
}
