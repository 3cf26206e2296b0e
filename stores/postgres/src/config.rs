//! Where the database is, and how it is reached.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_core::{Drift, Epoch, Error, ErrorKind, Result, shown};
use leasehold_net::{HostPort, Secret, StoreUrl, Tls};

/// PostgreSQL's usual port.
const PORT: u16 = 5432;
/// What [`PostgresConfig::from_url`] knows.
const OPTIONS: &str =
    "schema, listen, socket, sslmode, ca, cert, key, server_name, drift, connect_within or epoch";

/// Where the database is and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PostgresConfig {
    /// Servers of one database, in the order in which they are tried; the one that is not a standby
    /// is used.
    pub hosts: Vec<HostPort>,
    /// The folder of a Unix socket, in place of the hosts.
    pub socket: Option<PathBuf>,
    /// The role; `postgres` unless named.
    pub user: String,
    /// Its password.
    pub password: Option<Secret>,
    /// The database.
    pub database: String,
    /// The schema of leasehold's tables.
    pub schema: String,
    /// TLS, which is then required; certificates are always verified.
    pub tls: Option<Tls>,
    /// How waiters hear of a hand-over.
    pub listen: Listen,
    /// Whether the user vouches for the clocks of both sides ([`Drift::Vouched`]).
    pub drift: Drift,
    /// Which history the tokens belong to; see [`Epoch`].
    pub epoch: Epoch,
    /// For how long [`PostgresStore::connect`](crate::PostgresStore::connect) tries a server that
    /// cannot be reached.
    pub connect_within: Duration,
}

/// How waiters hear of a hand-over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Listen {
    /// By notification where that works on a connection like the others, else by looking: a pooler
    /// that lends a server connection for one transaction swallows notifications.
    #[default]
    Auto,
    /// By notification, on a direct connection to these servers beside a pooler; with another
    /// login or database where those are named.
    Direct {
        /// The servers.
        hosts: Vec<HostPort>,
        /// The role, unless the same.
        user: Option<String>,
        /// Its password, unless the same.
        password: Option<Secret>,
        /// The database, unless of the same name.
        database: Option<String>,
    },
    /// By looking.
    Never,
}

impl PostgresConfig {
    /// The database of this name at this server, as the role `postgres`, without TLS.
    pub fn new(host: impl Into<String>, port: u16, database: impl Into<String>) -> PostgresConfig {
        PostgresConfig {
            hosts: vec![HostPort { host: host.into(), port: Some(port) }],
            socket: None,
            user: String::from("postgres"),
            password: None,
            database: database.into(),
            schema: String::from("public"),
            tls: None,
            listen: Listen::Auto,
            drift: Drift::Tenth,
            epoch: Epoch(0),
            connect_within: Duration::from_secs(10),
        }
    }

    /// Reads `postgres://user:password@host:port,host/database?option=value`.
    ///
    /// Options: `schema` (`public`), `listen` (a direct server `host:port` or URL beside a pooler, or
    /// `never`), `socket` (the folder of a Unix socket), `sslmode` (`disable`, or `require`,
    /// `verify-ca`, `verify-full`, which all verify fully), `ca`, `cert`, `key`, `server_name`, `drift`
    /// (`vouched`), `connect_within` (seconds), `epoch`.
    ///
    /// ```
    /// use leasehold_postgres::PostgresConfig;
    ///
    /// let config = PostgresConfig::from_url("postgres://app:s3cret@db1,db2/shop?schema=locks")?;
    /// assert_eq!((config.database.as_str(), config.schema.as_str()), ("shop", "locks"));
    /// assert_eq!(config.url(), "postgres://app@db1,db2/shop?schema=locks");
    /// # Ok::<(), leasehold_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Config` for another scheme, no database, an unknown option or a value out of bounds.
    pub fn from_url(url: &str) -> Result<PostgresConfig> {
        let mut url = StoreUrl::parse(url)?;
        if !matches!(url.scheme.as_str(), "postgres" | "postgresql") {
            return Err(bad("its URL does not begin with `postgres://`".into()));
        }
        let user = url.user.clone().unwrap_or_else(|| String::from("postgres"));
        let config = PostgresConfig {
            hosts: url.hosts.clone(),
            socket: url.take("socket")?.map(PathBuf::from),
            database: if url.path.is_empty() { user.clone() } else { url.path.clone() },
            user,
            password: url.password.clone(),
            schema: url.take("schema")?.unwrap_or_else(|| String::from("public")),
            listen: listen(url.take("listen")?)?,
            drift: drift(url.take("drift")?)?,
            tls: tls(url.take("sslmode")?, url.take_tls()?)?,
            connect_within: Duration::from_secs(
                url.take_parsed::<u16>("connect_within", "seconds, 0 to 65535")?
                    .unwrap_or(10)
                    .into(),
            ),
            epoch: url.take_epoch()?,
        };
        url.finish(OPTIONS)?;
        Ok(config)
    }

    /// The URL that opens the same store, without passwords.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(HostPort::to_string).collect();
        let mut url = format!(
            "postgres://{}@{}/{}",
            encode(&self.user),
            hosts.join(","),
            encode(&self.database)
        );
        let mut options = Vec::new();
        if self.schema != "public" {
            options.push(format!("schema={}", encode(&self.schema)));
        }
        match &self.listen {
            Listen::Auto => {}
            Listen::Never => options.push("listen=never".into()),
            Listen::Direct { hosts, .. } => {
                let hosts: Vec<String> = hosts.iter().map(HostPort::to_string).collect();
                options.push(format!("listen={}", hosts.join(",")));
            }
        }
        if let Some(socket) = &self.socket {
            options.push(format!("socket={}", encode(&socket.to_string_lossy())));
        }
        if let Some(tls) = &self.tls {
            options.push("sslmode=verify-full".into());
            let files = [("ca", &tls.ca), ("cert", &tls.cert), ("key", &tls.key)];
            for (name, path) in files {
                if let Some(path) = path {
                    options.push(format!("{name}={}", encode(&path.to_string_lossy())));
                }
            }
            if let Some(name) = &tls.server_name {
                options.push(format!("server_name={}", encode(name)));
            }
        }
        if self.drift == Drift::Vouched {
            options.push("drift=vouched".into());
        }
        if self.epoch != Epoch(0) {
            options.push(format!("epoch={}", self.epoch));
        }
        for (n, option) in options.iter().enumerate() {
            url.push(if n == 0 { '?' } else { '&' });
            url.push_str(option);
        }
        url
    }

    /// The servers with their ports.
    pub(crate) fn addresses(hosts: &[HostPort]) -> Vec<(String, u16)> {
        hosts.iter().map(|host| host.or_port(PORT)).collect()
    }
}

fn listen(value: Option<String>) -> Result<Listen> {
    let Some(value) = value else { return Ok(Listen::Auto) };
    match value.as_str() {
        "auto" => return Ok(Listen::Auto),
        "never" => return Ok(Listen::Never),
        _ => {}
    }
    let whole = if value.contains("://") { value.clone() } else { format!("postgres://{value}") };
    let url = StoreUrl::parse(&whole)?;
    let direct = Listen::Direct {
        hosts: url.hosts.clone(),
        user: url.user.clone(),
        password: url.password.clone(),
        database: Some(url.path.clone()).filter(|path| !path.is_empty()),
    };
    url.finish("none within `listen`")?;
    Ok(direct)
}

fn drift(value: Option<String>) -> Result<Drift> {
    match value.as_deref() {
        None => Ok(Drift::Tenth),
        Some("vouched") => Ok(Drift::Vouched),
        Some(other) => Err(bad(format!("`drift={}`: want vouched", shown(other, 20)))),
    }
}

fn tls(mode: Option<String>, tls: Option<Tls>) -> Result<Option<Tls>> {
    match (mode.as_deref(), tls) {
        (None, tls) => Ok(tls),
        (Some("disable"), None) => Ok(None),
        (Some("disable"), Some(_)) => {
            Err(bad("`sslmode=disable` contradicts its options for certificates".into()))
        }
        (Some("require" | "verify-ca" | "verify-full"), tls) => Ok(Some(tls.unwrap_or_default())),
        (Some("allow" | "prefer"), _) => Err(bad(
            "`sslmode=allow` and `prefer` would go on without TLS unseen: want require or disable"
                .into(),
        )),
        (Some(other), _) => {
            Err(bad(format!("`sslmode={}`: want require or disable", shown(other, 20))))
        }
    }
}

fn bad(detail: String) -> Error {
    Error::new(ErrorKind::Config, "open the store", detail)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_survive_without_their_secrets() {
        for url in [
            "postgres://app@db1,db2:6543/shop",
            "postgres://a%40b@[::1]:5432/x%20y?schema=a%20b&listen=db1:5432&drift=vouched&epoch=3",
            "postgres://app@db1/x?listen=never&socket=/run/pg",
            "postgres://app@db1/x?sslmode=verify-full&ca=/ca.pem&server_name=db",
        ] {
            let config = PostgresConfig::from_url(url).unwrap();
            assert_eq!(config.url(), url);
            assert_eq!(PostgresConfig::from_url(&config.url()).unwrap(), config);
        }
        let url = "postgresql://app:s3cret@h/x?listen=postgres%3A%2F%2Fb:s3cret@i/y";
        let config = PostgresConfig::from_url(url).unwrap();
        assert!(!format!("{config:?} {}", config.url()).contains("s3cret"), "{config:?}");
        let Listen::Direct { user, database, .. } = config.listen else { panic!("not direct") };
        assert_eq!((user.as_deref(), database.as_deref()), (Some("b"), Some("y")));
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (url, word) in [
            ("mysql://h/x", "postgres://"),
            ("postgres://h/x?shcema=a", "shcema"),
            ("postgres://h/x?sslmode=prefer", "prefer"),
            ("postgres://h/x?sslmode=disable&ca=/x", "contradicts"),
            ("postgres://h/x?drift=none", "drift"),
            ("postgres://h/x?listen=h?x", "x"),
            ("postgres://h/x?connect_within=-1", "connect_within"),
        ] {
            let error = PostgresConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(word), "{url}: {error}");
        }
    }
}
