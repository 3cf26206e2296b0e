//! Reaching a server: the socket, TLS, who we are, and who it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Secret;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;

use super::pipe::{Broken, Pipe};
use super::refusal::{self, DOING};
use super::resp::Reply;

/// The port where none is named.
pub(crate) const PORT: u16 = 6379;
/// How long a connection may take to be made, and then to be greeted.
const CONNECT: Duration = Duration::from_secs(2);
/// After how long without a word the kernel asks whether the server is there, and how often.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(1), 3);
/// For how long what was sent may stay unacknowledged.
const UNACKNOWLEDGED_MS: u32 = 6_000;
/// The oldest servers that have what the scripts use.
const OLDEST: (u16, u16, u16) = (6, 2, 0);
/// The name under which `CLIENT LIST` shows our connections.
const CLIENT_NAME: &[u8] = b"leasehold";

/// A server's address.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// How to reach servers and who we are there.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// The name that certificates bear, where it is not the host's.
    pub(crate) server_name: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: u32,
}

/// Which server stands behind a connection.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) address: Address,
    /// Drawn anew whenever the server starts; `None` where we may not ask.
    run_id: Option<String>,
    /// The server numbers its connections from 1 on.
    connection: Option<i64>,
    /// When it was begun, and when it was there.
    begun: Instant,
    made: Instant,
}

impl Identity {
    /// Whether this connection may be to the very server of that one.
    pub(crate) fn continues(&self, before: &Identity) -> bool {
        if self.address != before.address {
            return false;
        }
        match (&self.run_id, &before.run_id) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => match (self.connection, before.connection) {
                (Some(ours), Some(theirs)) => ours > theirs || self.begun < before.made,
                _ => true,
            },
        }
    }
}

/// What a server is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `(0, 0, 0)` where it does not say.
    pub(crate) version: (u16, u16, u16),
    pub(crate) valkey: bool,
    /// Whether it is part of a cluster.
    pub(crate) cluster: bool,
    pub(crate) resp3: bool,
}

/// A greeted connection.
pub(crate) struct Dialed {
    pub(crate) pipe: Pipe,
    pub(crate) identity: Identity,
    pub(crate) facts: Facts,
    pub(crate) master: bool,
}

impl Dialer {
    /// Makes a connection to a server that keeps data, and sees that we may run scripts there.
    pub(crate) async fn dial(&self, address: &Address) -> Result<Dialed> {
        let begun = Instant::now();
        let greeted = async {
            let mut pipe = self.connect(address).await?;
            match self.greet(&mut pipe, address).await {
                Ok(told) => told.map(|greeting| greeting.dialed(pipe, address, begun)),
                Err(broken) => Err(broken.error()),
            }
        };
        let dialed = within(CONNECT * 2, greeted).await.and_then(|dialed| {
            check_version(&dialed.facts)?;
            Ok(dialed)
        });
        dialed.map_err(|error| error.at(address.to_string()))
    }

    /// Makes a connection without a greeting but the password: to a Sentinel.
    pub(crate) async fn dial_plainly(&self, address: &Address) -> Result<Pipe> {
        let greeted = async {
            let mut pipe = self.connect(address).await?;
            if self.say_who(&mut pipe) {
                accepted(pipe.reply().await.map_err(|broken| broken.error())?)?;
            }
            Ok(pipe)
        };
        within(CONNECT, greeted).await.map_err(|error| error.at(address.to_string()))
    }

    async fn connect(&self, address: &Address) -> Result<Pipe> {
        let stream = within(CONNECT, async {
            let target = (address.host.as_str(), address.port);
            TcpStream::connect(target).await.map_err(|error| unreached(&error))
        })
        .await?;
        // A socket without these options still works.
        let _ = stream.set_nodelay(true);
        let (idle, every, count) = KEEPALIVE;
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, idle);
        let _ = sockopt::set_tcp_keepintvl(&stream, every);
        let _ = sockopt::set_tcp_keepcnt(&stream, count);
        let _ = sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS);
        let tls = match &self.tls {
            Some(config) => Some((Arc::clone(config), self.name_at(address)?)),
            None => None,
        };
        Pipe::new(stream, tls).map_err(|broken| broken.error())
    }

    fn name_at(&self, address: &Address) -> Result<ServerName<'static>> {
        let name = self.server_name.as_ref().unwrap_or(&address.host);
        ServerName::try_from(name.clone()).map_err(|error| {
            let detail = format!("{name:?} cannot be a certificate's name: {error}");
            Error::new(ErrorKind::Config, DOING, detail)
        })
    }

    /// Says user and password in the old way; whether there is one to say.
    fn say_who(&self, pipe: &mut Pipe) -> bool {
        match (&self.user, &self.password) {
            (_, None) => return false,
            (None, Some(password)) => pipe.say(&[b"AUTH", password.expose().as_bytes()]),
            (Some(user), Some(password)) => {
                pipe.say(&[b"AUTH", user.as_bytes(), password.expose().as_bytes()]);
            }
        }
        true
    }

    /// Who we are and who it is, in one round trip; in two where the server is without RESP3.
    async fn greet(&self, pipe: &mut Pipe, address: &Address) -> Result<Result<Greeting>, Broken> {
        let mut hello: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = &self.password {
            let user = self.user.as_deref().unwrap_or("default");
            hello.extend([b"AUTH", user.as_bytes(), password.expose().as_bytes()]);
        }
        hello.extend([&b"SETNAME"[..], CLIENT_NAME]);
        pipe.say(&hello);
        self.ask_all(pipe);
        let hello = pipe.reply().await?;
        let answers = self.answers(pipe).await?;
        if let Reply::Error(text) = &hello {
            if !without_hello(text) {
                return Ok(Err(refusal::error(text)));
            }
            if self.say_who(pipe) {
                self.ask_all(pipe);
                if let Reply::Error(text) = pipe.reply().await? {
                    return Ok(Err(refusal::error(&text)));
                }
            } else {
                self.ask_all(pipe);
            }
            let answers = self.answers(pipe).await?;
            return Ok(Greeting::read(None, answers, address));
        }
        Ok(Greeting::read(Some(hello), answers, address))
    }

    fn ask_all(&self, pipe: &mut Pipe) {
        if self.db > 0 {
            pipe.say(&[b"SELECT", self.db.to_string().as_bytes()]);
        }
        pipe.say(&[b"INFO", b"server"]);
        pipe.say(&[b"ROLE"]);
        // A script that nobody has: what is refused otherwise has no scripts.
        pipe.say(&[b"EVALSHA", &[b'0'; 40], b"0"]);
    }

    async fn answers(&self, pipe: &mut Pipe) -> Result<Answers, Broken> {
        Ok(Answers {
            select: if self.db > 0 { Some(pipe.reply().await?) } else { None },
            info: pipe.reply().await?,
            role: pipe.reply().await?,
            script: pipe.reply().await?,
        })
    }
}

struct Answers {
    select: Option<Reply>,
    info: Reply,
    role: Reply,
    script: Reply,
}

struct Greeting {
    run_id: Option<String>,
    connection: Option<i64>,
    facts: Facts,
    master: bool,
}

impl Greeting {
    fn read(hello: Option<Reply>, answers: Answers, address: &Address) -> Result<Greeting> {
        answers.select.map_or(Ok(()), accepted)?;
        match &answers.script {
            Reply::Error(text) if !text.starts_with("NOSCRIPT") => {
                return Err(refusal::error(text).at(address.to_string()));
            }
            _ => {}
        }
        let hello = hello.unwrap_or(Reply::Nil);
        let said = |name: &str| hello.under(name).and_then(|value| value.str().ok());
        let info = answers.info.str().unwrap_or_default();
        let told =
            |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let mode = said("mode").or_else(|| told("redis_mode"));
        let role = said("role").or_else(|| match &answers.role {
            Reply::Array(role) => role.first().and_then(|role| role.str().ok()),
            _ => None,
        });
        let valkey = told("valkey_version")
            .or_else(|| said("version").filter(|_| said("server") == Some("valkey")));
        let version = valkey.or_else(|| told("redis_version")).or_else(|| said("version"));
        Ok(Greeting {
            run_id: told("run_id").map(str::to_owned),
            connection: hello.under("id").and_then(|id| id.int().ok()),
            facts: Facts {
                version: version.map(numbers).unwrap_or_default(),
                valkey: valkey.is_some(),
                cluster: mode == Some("cluster"),
                resp3: matches!(hello, Reply::Map(_)),
            },
            master: role.is_none_or(|role| role == "master"),
        })
    }

    fn dialed(self, pipe: Pipe, address: &Address, begun: Instant) -> Dialed {
        let identity = Identity {
            address: address.clone(),
            run_id: self.run_id,
            connection: self.connection,
            begun,
            made: Instant::now(),
        };
        Dialed { pipe, identity, facts: self.facts, master: self.master }
    }
}

/// Whether this refusal of HELLO says that the server is without it, and not that we are unwelcome.
fn without_hello(text: &str) -> bool {
    text.starts_with("NOPROTO")
        || text.starts_with("NOPERM")
        || text.starts_with("ERR") && !text.contains("max number of clients")
}

fn accepted(reply: Reply) -> Result<()> {
    match reply {
        Reply::Error(text) => Err(refusal::error(&text)),
        _ => Ok(()),
    }
}

fn numbers(version: &str) -> (u16, u16, u16) {
    let mut parts = version.split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse().unwrap_or_default()
    });
    let mut next = || parts.next().unwrap_or_default();
    (next(), next(), next())
}

fn check_version(facts: &Facts) -> Result<()> {
    let known = facts.version != (0, 0, 0);
    if known && !facts.valkey && facts.version < OLDEST {
        let (major, minor, patch) = facts.version;
        let detail = format!("the server is too old: Redis {major}.{minor}.{patch}");
        return Err(Error::new(ErrorKind::Config, DOING, detail)
            .advise("leasehold needs Redis 6.2 or later, or Valkey"));
    }
    Ok(())
}

fn unreached(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, DOING, error.to_string())
}

/// Bounds a wait; on a runtime only.
pub(crate) async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Unreachable, DOING, "the server did not answer in time"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(port: u16, run_id: Option<&str>, connection: Option<i64>) -> Identity {
        let address = Address { host: "h".into(), port };
        let run_id = run_id.map(str::to_owned);
        Identity { address, run_id, connection, begun: Instant::now(), made: Instant::now() }
    }

    #[test]
    fn another_run_or_address_is_another_server() {
        let before = identity(1, Some("a"), Some(7));
        assert!(identity(1, Some("a"), Some(9)).continues(&before));
        assert!(!identity(1, Some("b"), Some(9)).continues(&before));
        assert!(!identity(2, Some("a"), Some(9)).continues(&before));
        // Where INFO is not allowed, connection numbers that start over tell a restart.
        let before = identity(1, None, Some(7));
        assert!(identity(1, None, Some(8)).continues(&before));
        assert!(!identity(1, None, Some(3)).continues(&before));
        assert!(identity(1, None, None).continues(&before));
        // But not those of two connections that were made side by side.
        let mut beside = identity(1, None, Some(3));
        beside.begun = before.begun;
        assert!(beside.continues(&before));
    }

    #[test]
    fn versions_are_read_and_old_ones_refused() {
        assert_eq!(numbers("7.0.15"), (7, 0, 15));
        assert_eq!(numbers("8.1.0-rc2"), (8, 1, 0));
        assert_eq!(numbers("weird"), (0, 0, 0));
        let facts = |version| Facts { version, ..Facts::default() };
        assert_eq!(check_version(&facts((5, 0, 9))).unwrap_err().kind(), ErrorKind::Config);
        check_version(&facts((6, 2, 0))).unwrap();
        check_version(&facts((0, 0, 0))).unwrap();
        check_version(&Facts { version: (1, 0, 0), valkey: true, ..Facts::default() }).unwrap();
    }

    #[test]
    fn a_greeting_without_resp3_is_read_from_info_and_role() {
        let answers = Answers {
            select: None,
            info: Reply::Bulk(b"redis_version:6.2.6\r\nredis_mode:cluster\r\nrun_id:ab\r\n".into()),
            role: Reply::Array(vec![Reply::Bulk(b"slave".into())]),
            script: Reply::Error("NOSCRIPT No matching script".into()),
        };
        let address = Address { host: "::1".into(), port: 1 };
        let greeting = Greeting::read(None, answers, &address).unwrap();
        assert_eq!(greeting.facts.version, (6, 2, 6));
        assert!(greeting.facts.cluster && !greeting.facts.resp3 && !greeting.master);
        assert_eq!(greeting.run_id.as_deref(), Some("ab"));
        assert_eq!(address.to_string(), "[::1]:1");
    }
}
