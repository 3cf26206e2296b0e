//! One verified connection to the server that may be written to.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use leasehold_net::Secret;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, NoTls, TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Connection};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{Listen, PostgresConfig};
use crate::error::{DOING, not_connected};
use crate::hub::Hub;
use crate::schema::{self, Server};

/// How long one server may take to accept and to introduce itself.
const HOST_WITHIN: Duration = Duration::from_secs(5);
/// How long the kernel may try to deliver before it gives a connection up.
const USER_TIMEOUT_MS: u32 = 15_000;

/// The messages that come by themselves; the connection lives while this is polled.
pub(crate) type Messages =
    Pin<Box<dyn futures_util::Stream<Item = Result<AsyncMessage, tokio_postgres::Error>> + Send>>;

/// A connection that was looked over.
pub(crate) struct Opened {
    pub(crate) client: Client,
    pub(crate) messages: Messages,
    /// Whether the server itself sees our own port: then no pooler stands between.
    pub(crate) direct: bool,
    /// Whether it stays one session: what is set or prepared in it lasts.
    pub(crate) kept: bool,
}

/// How connections are made.
pub(crate) struct Connector {
    ways: Ways,
    listen: Ways,
    tls: Option<MakeRustlsConnect>,
    server_name: Option<String>,
    pub(crate) schema: String,
    timeline: AtomicU32,
    promotions: AtomicU32,
    hub: Arc<Hub>,
}

#[derive(Clone)]
struct Ways {
    ways: Vec<Way>,
    user: String,
    password: Option<Secret>,
    database: String,
}

#[derive(Clone)]
enum Way {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Tcp(host, port) => write!(f, "{host}:{port}"),
            Way::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Connector {
    pub(crate) fn new(config: &PostgresConfig, hub: Arc<Hub>) -> Result<Connector> {
        let tls = match &config.tls {
            Some(tls) => {
                let client = tls.client_config()?;
                Some(MakeRustlsConnect::new(Arc::unwrap_or_clone(client)))
            }
            None => None,
        };
        let tcp = |hosts: &[_]| -> Vec<Way> {
            PostgresConfig::addresses(hosts).into_iter().map(|(h, p)| Way::Tcp(h, p)).collect()
        };
        let (_, port) = PostgresConfig::addresses(&config.hosts)
            .into_iter()
            .next()
            .unwrap_or((String::new(), 5432));
        let ways = Ways {
            ways: match &config.socket {
                Some(folder) => vec![Way::Unix(folder.join(format!(".s.PGSQL.{port}")))],
                None => tcp(&config.hosts),
            },
            user: config.user.clone(),
            password: config.password.clone(),
            database: config.database.clone(),
        };
        let listen = match &config.listen {
            Listen::Direct { hosts, user, password, database } => Ways {
                ways: tcp(hosts),
                user: user.clone().unwrap_or_else(|| ways.user.clone()),
                password: password.clone().or_else(|| ways.password.clone()),
                database: database.clone().unwrap_or_else(|| ways.database.clone()),
            },
            Listen::Auto | Listen::Never => ways.clone(),
        };
        Ok(Connector {
            ways,
            listen,
            tls,
            server_name: config.tls.as_ref().and_then(|tls| tls.server_name.clone()),
            schema: config.schema.clone(),
            timeline: AtomicU32::new(0),
            promotions: AtomicU32::new(0),
            hub,
        })
    }

    /// How often a standby was seen to have taken over.
    pub(crate) fn promotions(&self) -> u32 {
        self.promotions.load(Ordering::SeqCst)
    }

    /// Connects to the server that may be written to, and sees that its tables are ours.
    pub(crate) async fn open(&self) -> Result<Opened> {
        let (opened, server) = self.reach(&self.ways).await?;
        self.note(&server);
        self.polled(opened, async |client| schema::ensure(client, &self.schema, &server).await)
            .await
    }

    /// Connects to listen.
    pub(crate) async fn open_listener(&self) -> Result<Opened> {
        let (opened, _) = self.reach(&self.listen).await?;
        Ok(opened)
    }

    /// A higher timeline than before: what the old primary had not passed on is lost.
    fn note(&self, server: &Server) {
        let before = self.timeline.fetch_max(server.timeline, Ordering::SeqCst);
        if before != 0 && server.timeline > before {
            self.promotions.fetch_add(1, Ordering::SeqCst);
            self.hub.disturb();
        }
    }

    /// The first server of all that may be written to.
    async fn reach(&self, to: &Ways) -> Result<(Opened, Server)> {
        let mut last: Option<Error> = None;
        for way in &to.ways {
            let reached = timeout(HOST_WITHIN, self.reach_one(to, way));
            let error = match reached.await {
                Ok(Ok((opened, server))) if server.writable => return Ok((opened, server)),
                Ok(Ok((_, server))) => {
                    let what = if server.standby { "is a standby" } else { "is read-only" };
                    Error::new(ErrorKind::Unavailable, DOING, format!("the server {way} {what}"))
                        .advise("name the primary, or all servers, in the store's URL")
                }
                Ok(Err(error)) => error,
                Err(_) => Error::new(
                    ErrorKind::Unreachable,
                    DOING,
                    format!("{way} did not answer within {HOST_WITHIN:?}"),
                ),
            };
            tracing::debug!(server = %way, %error, "not the server to write to");
            // Of several the one that says most: a refusal before a silence.
            let more = last.as_ref().is_none_or(|l| l.kind() == ErrorKind::Unreachable);
            if more {
                last = Some(error);
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Config, DOING, "its URL names no server")))
    }

    async fn reach_one(&self, to: &Ways, way: &Way) -> Result<(Opened, Server)> {
        let mut config = tokio_postgres::Config::new();
        config.user(&to.user).dbname(&to.database).application_name("leasehold");
        if let Some(password) = &to.password {
            config.password(password.expose());
        }
        let (socket, port, host) = dial(way).await?;
        let (client, messages) = match &self.tls {
            Some(make) if !matches!(way, Way::Unix(_)) => {
                config.ssl_mode(SslMode::Require);
                let name = self.server_name.clone().unwrap_or(host);
                let mut make = make.clone();
                let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut make, &name)
                    .map_err(|e| Error::new(ErrorKind::Config, DOING, e.to_string()))?;
                raw(&config, socket, tls).await?
            }
            _ => {
                config.ssl_mode(SslMode::Disable);
                raw(&config, socket, NoTls).await?
            }
        };
        let opened = Opened { client, messages, direct: false, kept: false };
        let mut server = None;
        let mut opened = self
            .polled(opened, async |client| {
                server = Some(schema::look(client, &self.schema).await?);
                Ok(())
            })
            .await?;
        let Some(server) = server else { return Err(crate::error::strange("nothing")) };
        opened.direct = port.is_some() && port == server.seen_port;
        opened.kept = opened.direct;
        Ok((opened, server))
    }

    /// Does something with a connection while it is polled.
    async fn polled(
        &self,
        mut opened: Opened,
        work: impl AsyncFnOnce(&Client) -> Result<()>,
    ) -> Result<Opened> {
        let mut early = VecDeque::new();
        {
            let mut work = std::pin::pin!(work(&opened.client));
            loop {
                tokio::select! {
                    biased;
                    done = &mut work => { done?; break; }
                    message = next(&mut opened.messages) => match message {
                        Some(Ok(message)) => early.push_back(message),
                        Some(Err(error)) => return Err(not_connected(error)),
                        None => return Err(ended()),
                    },
                }
            }
        }
        drop(early); // notices of what was there already
        Ok(opened)
    }
}

/// The next message that comes by itself.
pub(crate) async fn next(
    messages: &mut Messages,
) -> Option<Result<AsyncMessage, tokio_postgres::Error>> {
    poll_fn(|cx| messages.as_mut().poll_next(cx)).await
}

/// The connection ended without a word.
pub(crate) fn ended() -> Error {
    Error::new(ErrorKind::Unreachable, DOING, "the server closed the connection").maybe_applied()
}

async fn raw<T>(
    config: &tokio_postgres::Config,
    socket: Socket,
    tls: T,
) -> Result<(Client, Messages)>
where
    T: TlsConnect<Socket>,
    T::Stream: TlsStream + Unpin + Send + 'static,
{
    let (client, mut connection): (Client, Connection<Socket, T::Stream>) =
        config.connect_raw(socket, tls).await.map_err(not_connected)?;
    let messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
    Ok((client, Box::pin(messages)))
}

async fn dial(way: &Way) -> Result<(Socket, Option<i32>, String)> {
    let unreached = |e: io::Error| {
        Error::new(ErrorKind::Unreachable, DOING, format!("{way} was not reached: {e}"))
            .caused_by(e)
    };
    match way {
        Way::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(unreached)?;
            Ok((Socket::Unix(stream), None, String::new()))
        }
        Way::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(unreached)?;
            stream.set_nodelay(true).map_err(unreached)?;
            // So that the kernel notices a peer that is gone without a word.
            let kept = rustix::net::sockopt::set_socket_keepalive(&stream, true)
                .and_then(|()| {
                    rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(5))
                })
                .and_then(|()| {
                    rustix::net::sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))
                });
            kept.map_err(|e| unreached(e.into()))?;
            #[cfg(target_os = "linux")]
            rustix::net::sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT_MS)
                .map_err(|e| unreached(e.into()))?;
            let local = stream.local_addr().map_err(unreached)?;
            Ok((Socket::Tcp(stream), Some(local.port().into()), host.clone()))
        }
    }
}

/// A connection by TCP or by a Unix socket.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
