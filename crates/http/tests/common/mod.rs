//! A real PostgreSQL for a whole test binary, a real service on a socket, and the smallest client.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use leasehold_http::{BoxError, Database, Step};
use leasehold_testkit::server::postgres::Postgres;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Nothing here takes nearly as long.
pub(crate) const SOON: Duration = Duration::from_secs(30);

fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

/// A database that nobody else uses, by a pool, that can be told to fail.
#[derive(Clone)]
pub(crate) struct Pool {
    pool: deadpool_postgres::Pool,
    is_away: Arc<AtomicBool>,
}

impl Pool {
    pub(crate) fn new() -> Pool {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test{}", NUMBER.fetch_add(1, Ordering::SeqCst));
        server().create_database(&name);
        let mut config = tokio_postgres::Config::new();
        config.host("127.0.0.1").port(server().port()).user("postgres").dbname(&name);
        let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(12)
            .wait_timeout(Some(SOON))
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .build()
            .unwrap();
        Pool { pool, is_away: Arc::new(AtomicBool::new(false)) }
    }

    pub(crate) async fn get(&self) -> deadpool_postgres::Object {
        self.pool.get().await.unwrap()
    }

    /// Lets the layer's own transactions fail, or not any more.
    pub(crate) fn away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    pub(crate) async fn count(&self, statement: &str) -> i64 {
        self.get().await.query_one(statement, &[]).await.unwrap().get(0)
    }
}

#[async_trait]
impl Database for Pool {
    async fn within(&self, step: &mut dyn Step) -> Result<(), BoxError> {
        if self.is_away.load(Ordering::SeqCst) {
            return Err("the database is away".into());
        }
        let mut connection = self.pool.get().await?;
        let mut transaction = connection.transaction().await?;
        step.run(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }
}

/// Serves on a free port for as long as the runtime lives.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    addr
}

/// A request in the making.
#[derive(Clone)]
pub(crate) struct Ask {
    line: String,
    headers: String,
    body: Vec<u8>,
}

pub(crate) fn ask(method: &str, path: &str) -> Ask {
    let line = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    Ask { line, headers: String::new(), body: Vec::new() }
}

impl Ask {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push_str(&format!("{name}: {value}\r\n"));
        self
    }

    /// A key of the caller `alice`.
    pub(crate) fn key(self, key: &str) -> Ask {
        self.header("idempotency-key", key).header("x-caller", "alice")
    }

    pub(crate) fn body(mut self, body: impl Into<Vec<u8>>) -> Ask {
        self.body = body.into();
        self
    }

    /// Sends it; whoever drops the stream has hung up.
    pub(crate) async fn open(&self, addr: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let length = self.body.len();
        let head = format!("{}{}content-length: {length}\r\n\r\n", self.line, self.headers);
        stream.write_all(head.as_bytes()).await.unwrap();
        // A server that refuses a large body may close before it was sent.
        let _ = stream.write_all(&self.body).await;
        stream
    }

    pub(crate) async fn send(&self, addr: SocketAddr) -> Reply {
        let mut stream = self.open(addr).await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut bytes)).await.unwrap();
        assert!(read.is_ok() || !bytes.is_empty(), "{read:?}");
        Reply::read(&bytes)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    fn read(bytes: &[u8]) -> Reply {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        Reply { status, headers: headers.collect(), body: bytes[end + 4..].to_vec() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The `code` of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let text = self.text();
        let after = text.split("\"code\":\"").nth(1).expect("a code");
        after.split('"').next().unwrap().to_owned()
    }
}
