//! What the tests stand on: one server of each engine a test program, and connections that speak to any of them.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod agent;

use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use leasehold_data::idempotency::{Claimed, Keys, Run};
use leasehold_data::{Error, Table};
use leasehold_sql::{Answer, Class, Connection, Engine, Row, Transaction, Value};
use leasehold_testkit::server::mariadb::MariaDb;
use leasehold_testkit::server::postgres::Postgres;

pub(crate) const ENGINES: [Engine; 3] = [Engine::Postgres, Engine::Mysql, Engine::Sqlite];

/// How long anything that must happen may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A database as another process can be told of it.
#[derive(Clone, Debug)]
pub(crate) enum Db {
    Postgres(u16),
    Mysql(u16),
    Sqlite(String),
}

fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

fn mysql() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = MariaDb::start();
        server.sql("mysql", "CREATE DATABASE shop");
        server
    })
}

fn sqlite() -> String {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().unwrap());
    folder.path().join("shop.db").to_str().unwrap().to_owned()
}

impl Db {
    pub(crate) fn of(engine: Engine) -> Db {
        match engine {
            Engine::Postgres => Db::Postgres(postgres().port()),
            Engine::Mysql => Db::Mysql(mysql().port()),
            _ => Db::Sqlite(sqlite()),
        }
    }

    pub(crate) fn engine(&self) -> Engine {
        match self {
            Db::Postgres(_) => Engine::Postgres,
            Db::Mysql(_) => Engine::Mysql,
            Db::Sqlite(_) => Engine::Sqlite,
        }
    }

    /// The same database through another port.
    pub(crate) fn through(&self, port: u16) -> Db {
        match self {
            Db::Postgres(_) => Db::Postgres(port),
            Db::Mysql(_) => Db::Mysql(port),
            Db::Sqlite(path) => Db::Sqlite(path.clone()),
        }
    }

    pub(crate) fn told(&self) -> String {
        match self {
            Db::Postgres(port) => format!("postgres {port}"),
            Db::Mysql(port) => format!("mysql {port}"),
            Db::Sqlite(path) => format!("sqlite {path}"),
        }
    }

    pub(crate) fn heard(told: &str) -> Db {
        match told.split_once(' ').unwrap() {
            ("postgres", port) => Db::Postgres(port.parse().unwrap()),
            ("mysql", port) => Db::Mysql(port.parse().unwrap()),
            (_, path) => Db::Sqlite(path.to_owned()),
        }
    }

    /// A new connection. No lock is waited for longer than ten seconds.
    pub(crate) async fn try_connect(&self) -> Result<Conn, leasehold_sql::Error> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            leasehold_sql::Error::new(Class::Connection, None, error)
        };
        let mut conn = match self {
            Db::Postgres(port) => {
                let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
                let connected = tokio_postgres::connect(&config, tokio_postgres::NoTls).await;
                let (client, connection) = connected.map_err(|error| failed(error.into()))?;
                tokio::spawn(connection);
                Conn::Postgres(client)
            }
            Db::Mysql(port) => {
                let opts = mysql_async::OptsBuilder::default()
                    .ip_or_hostname("127.0.0.1")
                    .tcp_port(*port)
                    .prefer_socket(false)
                    .user(Some("root"))
                    .db_name(Some("shop"));
                let connected = mysql_async::Conn::new(opts).await;
                Conn::Mysql(connected.map_err(|error| failed(error.into()))?)
            }
            Db::Sqlite(path) => {
                let db = rusqlite::Connection::open(path).unwrap();
                db.busy_timeout(Duration::from_secs(10)).unwrap();
                db.pragma_update(None, "journal_mode", "wal").unwrap();
                db.pragma_update(None, "synchronous", "normal").unwrap();
                Conn::Sqlite(db)
            }
        };
        match self {
            Db::Postgres(_) => conn.try_sql("SET lock_timeout = '10s'").await?,
            Db::Mysql(_) => {
                conn.try_sql("SET SESSION innodb_lock_wait_timeout = 10").await?;
                conn.try_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?
            }
            Db::Sqlite(_) => 0,
        };
        Ok(conn)
    }

    pub(crate) async fn connect(&self) -> Conn {
        self.try_connect().await.unwrap()
    }
}

/// A connection, and the transaction on it that was begun by [`Conn::begin`].
pub(crate) enum Conn {
    Postgres(tokio_postgres::Client),
    Mysql(mysql_async::Conn),
    Sqlite(rusqlite::Connection),
}

impl Conn {
    fn inner(&mut self) -> &mut dyn Connection {
        match self {
            Conn::Postgres(conn) => conn,
            Conn::Mysql(conn) => conn,
            Conn::Sqlite(conn) => conn,
        }
    }

    pub(crate) async fn try_sql(&mut self, sql: &str) -> Result<u64, leasehold_sql::Error> {
        self.inner().execute(sql, &[]).await
    }

    pub(crate) async fn sql(&mut self, sql: &str) -> u64 {
        self.try_sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    pub(crate) async fn number(&mut self, sql: &str) -> i64 {
        let rows = self.inner().rows(sql, &[]).await;
        let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows[0].int(0).unwrap_or_else(|| panic!("{sql}: {rows:?}"))
    }

    /// A statement with `?` for its values, as this engine wants them.
    pub(crate) fn with_marks(&self, sql: &str) -> String {
        let engine = Transaction::engine(self);
        let mut parts = sql.split('?');
        let mut text = parts.next().unwrap().to_owned();
        for (at, part) in parts.enumerate() {
            text += &match engine {
                Engine::Postgres => format!("${}", at + 1),
                _ => "?".to_owned(),
            };
            text += part;
        }
        text
    }

    pub(crate) async fn put(
        &mut self,
        sql: &str,
        values: &[Value],
    ) -> Result<u64, leasehold_sql::Error> {
        let text = self.with_marks(sql);
        self.inner().execute(&text, values).await
    }

    pub(crate) async fn begin(&mut self) {
        self.try_begin().await.unwrap();
    }

    pub(crate) async fn try_begin(&mut self) -> Result<(), leasehold_sql::Error> {
        let begin = if matches!(self, Conn::Sqlite(_)) { "BEGIN IMMEDIATE" } else { "BEGIN" };
        self.try_sql(begin).await.map(|_| ())
    }

    pub(crate) async fn commit(&mut self) {
        self.sql("COMMIT").await;
    }

    pub(crate) async fn rollback(&mut self) {
        self.sql("ROLLBACK").await;
    }

    /// Rolls back what may be under way, if there is still a connection.
    pub(crate) async fn clear(&mut self) {
        // SQLite says that there is none; a broken connection has rolled back by itself.
        let _ = self.try_sql("ROLLBACK").await;
    }

    /// What the server calls this connection.
    pub(crate) async fn id(&mut self) -> i64 {
        let sql = match self {
            Conn::Postgres(_) => "SELECT pg_backend_pid()",
            _ => "SELECT CONNECTION_ID()",
        };
        self.number(sql).await
    }

    /// Waits until the transaction of the connection of this id waits for a lock.
    pub(crate) async fn until_it_waits(&mut self, id: i64) {
        let sql = match self {
            Conn::Postgres(_) => {
                format!(
                    "SELECT count(*) FROM pg_stat_activity \
                     WHERE wait_event_type = 'Lock' AND pid = {id}"
                )
            }
            _ => format!(
                "SELECT COUNT(*) FROM information_schema.innodb_trx \
                 WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = {id}"
            ),
        };
        let mysql = matches!(self, Conn::Mysql(_));
        let mut pause = Duration::from_millis(120);
        until(async || {
            if mysql {
                // InnoDB makes this table anew only if nobody has read it for a tenth of a second,
                // and others read it too.
                tokio::time::sleep(pause).await;
                pause += Duration::from_millis(40);
            }
            self.number(&sql).await > 0
        })
        .await;
    }
}

impl Transaction for Conn {
    fn engine(&self) -> Engine {
        match self {
            Conn::Postgres(_) => Engine::Postgres,
            Conn::Mysql(_) => Engine::Mysql,
            Conn::Sqlite(_) => Engine::Sqlite,
        }
    }

    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
        self.inner().rows(statement, values)
    }

    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
        self.inner().execute(statement, values)
    }
}

/// Waits until it is so.
pub(crate) async fn until(mut is: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is().await {
        assert!(Instant::now() < end, "it does not come to pass");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Keys in a table of this name, which is made anew.
pub(crate) async fn keys_in(conn: &mut Conn, name: &str) -> Keys {
    let table = Table::new(name).unwrap();
    let keys = Keys::new().in_table(table).unwrap();
    let quoted = quoted(conn, name);
    conn.sql(&format!("DROP TABLE IF EXISTS {quoted}")).await;
    conn.begin().await;
    keys.create_table(conn).await.unwrap();
    conn.commit().await;
    keys
}

pub(crate) fn quoted(conn: &Conn, name: &str) -> String {
    match Transaction::engine(conn) {
        Engine::Postgres => format!("\"{name}\""),
        _ => format!("`{name}`"),
    }
}

pub(crate) fn run_of(claimed: Result<Claimed, Error>) -> Run {
    match claimed {
        Ok(Claimed::Run(run)) => run,
        other => panic!("no run: {other:?}"),
    }
}

/// The same test on each engine.
#[macro_export]
macro_rules! on_each {
    ($($name:ident),* $(,)?) => {
        mod postgres {
            $(#[test] fn $name() { $crate::common::block_on(super::$name(leasehold_sql::Engine::Postgres)) })*
        }
        mod mysql {
            $(#[test] fn $name() { $crate::common::block_on(super::$name(leasehold_sql::Engine::Mysql)) })*
        }
        mod sqlite {
            $(#[test] fn $name() { $crate::common::block_on(super::$name(leasehold_sql::Engine::Sqlite)) })*
        }
    };
}
