//! What the tests of locks stand on: one server of a kind a test program, and connections of every
//! driver to them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_data::lock::row::Rows;
use leasehold_sql::{Begun, Connection, Engine, Row, Transaction};
use leasehold_testkit::server::mariadb::MariaDb;
use leasehold_testkit::server::postgres::Postgres;
use sqlx::ConnectOptions as _;

/// Longer than any wait that is to be met.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn postgres() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Postgres::start();
        server.sql(&Rows::default().schema(Engine::Postgres));
        server.sql("CREATE TABLE counter (name text PRIMARY KEY, n bigint NOT NULL)");
        server
    })
}

pub(crate) fn mariadb() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = MariaDb::start();
        prepare_mariadb(&server);
        server
    })
}

pub(crate) fn prepare_mariadb(server: &MariaDb) {
    server.sql("mysql", "CREATE DATABASE app");
    server.sql("app", &Rows::default().schema(Engine::Mysql));
    let counter = "CREATE TABLE counter (name VARBINARY(99) PRIMARY KEY, n BIGINT NOT NULL)";
    server.sql("app", counter);
}

/// A driver of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    TokioPostgres,
    SqlxPostgres,
    MysqlAsync,
    SqlxMysql,
    Rusqlite,
    SqlxSqlite,
}

pub(crate) use Driver::{MysqlAsync, Rusqlite, SqlxMysql, SqlxPostgres, SqlxSqlite, TokioPostgres};

/// Those that go to a server.
pub(crate) const SERVERS: [Driver; 4] = [TokioPostgres, SqlxPostgres, MysqlAsync, SqlxMysql];

/// A database of a test's own: for a server the one of the program, for SQLite a file.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) driver: Driver,
    port: u16,
    file: std::path::PathBuf,
}

impl Place {
    pub(crate) fn new(driver: Driver, folder: &Path) -> Place {
        let port = match driver {
            TokioPostgres | SqlxPostgres => postgres().port(),
            MysqlAsync | SqlxMysql => mariadb().port(),
            Rusqlite | SqlxSqlite => 0,
        };
        Place::at(driver, port, folder)
    }

    pub(crate) fn at(driver: Driver, port: u16, folder: &Path) -> Place {
        let file = folder.join("app.db");
        if matches!(driver, Rusqlite | SqlxSqlite) && !file.exists() {
            let db = rusqlite::Connection::open(&file).unwrap();
            db.pragma_update(None, "journal_mode", "wal").unwrap();
            db.execute_batch(&Rows::default().schema(Engine::Sqlite)).unwrap();
            let counter = "CREATE TABLE counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL)";
            db.execute_batch(counter).unwrap();
        }
        Place { driver, port, file }
    }

    pub(crate) async fn open(&self) -> Db {
        let port = self.port;
        Db(match self.driver {
            TokioPostgres => Box::new(tokio_postgres_client(port).await),
            SqlxPostgres => {
                let options = sqlx::postgres::PgConnectOptions::new_without_pgpass()
                    .host("127.0.0.1")
                    .port(port)
                    .username("postgres")
                    .database("postgres")
                    .disable_statement_logging();
                Box::new(options.connect().await.unwrap())
            }
            MysqlAsync => Box::new(mysql_async::Conn::new(mysql_opts(port)).await.unwrap()),
            SqlxMysql => {
                let options = sqlx::mysql::MySqlConnectOptions::new()
                    .host("127.0.0.1")
                    .port(port)
                    .username("root")
                    .database("app")
                    .disable_statement_logging();
                Box::new(options.connect().await.unwrap())
            }
            Rusqlite => {
                let db = rusqlite::Connection::open(&self.file).unwrap();
                db.busy_timeout(Duration::from_millis(777)).unwrap();
                Box::new(db)
            }
            SqlxSqlite => {
                let options = sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(&self.file)
                    .busy_timeout(Duration::from_millis(777))
                    .disable_statement_logging();
                Box::new(options.connect().await.unwrap())
            }
        })
    }

    pub(crate) fn engine(&self) -> Engine {
        match self.driver {
            TokioPostgres | SqlxPostgres => Engine::Postgres,
            MysqlAsync | SqlxMysql => Engine::Mysql,
            Rusqlite | SqlxSqlite => Engine::Sqlite,
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.engine() == Engine::Postgres
    }
}

pub(crate) async fn tokio_postgres_client(port: u16) -> tokio_postgres::Client {
    let (client, connection) = postgres_config(port).connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn postgres_config(port: u16) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    config.host("127.0.0.1").port(port).user("postgres").dbname("postgres");
    config
}

pub(crate) fn mysql_opts(port: u16) -> mysql_async::OptsBuilder {
    mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .prefer_socket(false)
        .user(Some("root"))
        .db_name(Some("app"))
}

/// One connection.
pub(crate) struct Db(Box<dyn Connection + Send>);

pub(crate) type Tx<'a> = Begun<'a, dyn Connection + Send>;

impl Db {
    pub(crate) fn raw(&mut self) -> &mut (dyn Connection + Send) {
        &mut *self.0
    }

    pub(crate) async fn begin(&mut self) -> Tx<'_> {
        self.begin_with("BEGIN").await
    }

    pub(crate) async fn begin_with(&mut self, begin: &str) -> Tx<'_> {
        self.0.execute(begin, &[]).await.unwrap();
        Begun::on(&mut *self.0).await.unwrap()
    }

    /// The transaction that is there already.
    pub(crate) async fn again(&mut self) -> Tx<'_> {
        Begun::on(&mut *self.0).await.unwrap()
    }

    pub(crate) async fn sql(&mut self, statement: &str) -> u64 {
        let done = self.0.execute(statement, &[]).await;
        done.unwrap_or_else(|error| panic!("{statement}: {error:?}"))
    }

    pub(crate) async fn rows(&mut self, statement: &str) -> Vec<Row> {
        let rows = self.0.rows(statement, &[]).await;
        rows.unwrap_or_else(|error| panic!("{statement}: {error:?}"))
    }

    pub(crate) async fn text(&mut self, statement: &str) -> String {
        let rows = self.rows(statement).await;
        match rows[0].get(0) {
            Some(leasehold_sql::Value::Text(text)) => text.clone(),
            Some(leasehold_sql::Value::Bytes(bytes)) => String::from_utf8(bytes.clone()).unwrap(),
            Some(leasehold_sql::Value::Int(number)) => number.to_string(),
            other => panic!("{statement}: {other:?}"),
        }
    }

    pub(crate) async fn commit(&mut self) {
        self.sql("COMMIT").await;
    }

    pub(crate) async fn rollback(&mut self) {
        self.sql("ROLLBACK").await;
    }

    /// By which number the server knows it.
    pub(crate) async fn server_id(&mut self) -> String {
        let ask = match self.0.engine() {
            Engine::Postgres => "SELECT pg_backend_pid()::int8",
            _ => "SELECT CONNECTION_ID()",
        };
        self.text(ask).await
    }
}

/// Reads and writes as a program does that thinks in between: nothing but a lock keeps it exact.
pub(crate) async fn count_up(tx: &mut Tx<'_>, name: &str) {
    let read = format!("SELECT n FROM counter WHERE name = '{name}'");
    let n = tx.rows(&read, &[]).await.unwrap()[0].int(0).unwrap();
    tokio::task::yield_now().await;
    let write = format!("UPDATE counter SET n = {} WHERE name = '{name}'", n + 1);
    assert_eq!(tx.execute(&write, &[]).await.unwrap(), 1);
}

/// A name that no other test has.
pub(crate) fn fresh(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Looks again and again until it is so.
pub(crate) async fn until(what: impl std::fmt::Debug, mut is: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is().await {
        assert!(Instant::now() < end, "not {what:?} within {LONG:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether this session waits for a lock at the server.
pub(crate) fn waits(engine: Engine, id: &str) -> bool {
    let answer = match engine {
        Engine::Postgres => postgres().sql(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = {id} AND wait_event_type = 'Lock'"
        )),
        _ => {
            // InnoDB makes this table anew only if nobody has read it for a tenth of a second, and
            // others read it too: by the id the readers come apart.
            let apart = id.bytes().map(u64::from).sum::<u64>() % 97;
            std::thread::sleep(Duration::from_millis(130 + 2 * apart));
            mariadb().sql(
                "app",
                &format!(
                    "SELECT COUNT(*) FROM information_schema.innodb_trx \
                     WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = {id}"
                ),
            )
        }
    };
    answer.trim() == "1"
}

/// Ends a connection as an operator does.
pub(crate) fn kill(engine: Engine, id: &str) {
    match engine {
        Engine::Postgres => {
            assert_eq!(postgres().sql(&format!("SELECT pg_terminate_backend({id})")), "t");
        }
        _ => drop(mariadb().sql("app", &format!("KILL {id}"))),
    }
}
