//! How to connect by each driver.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use leasehold_fence::sql::{self, Engine};
use leasehold_fence::{Mark, Resource, Token};
use leasehold_sql::{Begun, Connection};
use leasehold_testkit::server::{mariadb::MariaDb, postgres::Postgres};
use sqlx::Connection as _;

type Opened = Pin<Box<dyn Future<Output = Box<dyn Connection>>>>;

/// One driver, on a database of its own with the table of marks in it.
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    open: Box<dyn Fn() -> Opened>,
    _kept: Option<tempfile::TempDir>,
}

impl Driver {
    async fn new(engine: Engine, open: impl Fn() -> Opened + 'static) -> Driver {
        let driver = Driver { engine, open: Box::new(open), _kept: None };
        let mut db = driver.open().await;
        sql::create_table(&mut *db).await.unwrap();
        sql::create_table(&mut *db).await.expect("running it again is harmless");
        driver
    }

    pub(crate) async fn open(&self) -> Box<dyn Connection> {
        (self.open)().await
    }

    /// A table of one account with 100 in it, of this name.
    pub(crate) async fn account(&self, table: &str) -> Account {
        let mut db = self.open().await;
        run(&mut *db, &format!("CREATE TABLE {table} (balance BIGINT NOT NULL)")).await;
        run(&mut *db, &format!("INSERT INTO {table} VALUES (100)")).await;
        Account { table: table.to_owned(), of: Resource::new(table).unwrap() }
    }

    /// One that waits for a row is seen here.
    pub(crate) async fn somebody_waits(&self) {
        let mut db = self.open().await;
        let ask = match self.engine {
            Engine::Postgres => {
                "SELECT count(*) FROM pg_stat_activity \
                 WHERE datname = current_database() AND wait_event_type = 'Lock'"
            }
            _ => {
                "SELECT CAST(COUNT(*) AS SIGNED) FROM information_schema.innodb_trx t \
                 JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
                 WHERE t.trx_state = 'LOCK WAIT' AND p.db = DATABASE()"
            }
        };
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut pause = std::time::Duration::from_millis(120);
        while db.rows(ask, &[]).await.unwrap()[0].int(0) != Some(1) {
            assert!(std::time::Instant::now() < end, "nobody waits");
            // MariaDB looks at its transactions only when nobody has asked for a tenth of a second,
            // and others ask too.
            tokio::time::sleep(pause).await;
            pause += std::time::Duration::from_millis(40);
        }
    }
}

/// What is guarded.
pub(crate) struct Account {
    pub(crate) table: String,
    pub(crate) of: Resource,
}

impl Account {
    pub(crate) async fn balance(&self, db: &mut dyn Connection) -> i64 {
        let rows = db.rows(&format!("SELECT balance FROM {}", self.table), &[]).await.unwrap();
        rows[0].int(0).unwrap()
    }

    pub(crate) async fn set(&self, db: &mut dyn Connection, to: i64) {
        run(db, &format!("UPDATE {} SET balance = {to}", self.table)).await;
    }
}

pub(crate) fn at(n: u64) -> Mark {
    Mark::from(Token::new(n).unwrap())
}

pub(crate) async fn run(db: &mut dyn Connection, statement: &str) {
    db.execute(statement, &[]).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
}

/// A transaction, begun as one should.
pub(crate) async fn begin<'a>(db: &'a mut (dyn Connection + 'a)) -> Begun<'a, dyn Connection + 'a> {
    let begin = if db.engine() == Engine::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    run(db, begin).await;
    Begun::on(db).await.unwrap()
}

pub(crate) fn postgres_server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(Postgres::start)
}

pub(crate) fn mariadb_server() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(MariaDb::start)
}

pub(crate) async fn tokio_postgres() -> Driver {
    postgres_server().create_database("one");
    let config =
        format!("host=127.0.0.1 port={} user=postgres dbname=one", postgres_server().port());
    Driver::new(Engine::Postgres, move || {
        let config = config.clone();
        Box::pin(async move {
            let (client, connection) =
                tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(async { drop(connection.await) });
            Box::new(client) as _
        })
    })
    .await
}

pub(crate) async fn sqlx_postgres() -> Driver {
    postgres_server().create_database("two");
    let url = format!("postgres://postgres@127.0.0.1:{}/two", postgres_server().port());
    Driver::new(Engine::Postgres, move || {
        let url = url.clone();
        Box::pin(async move { Box::new(sqlx::PgConnection::connect(&url).await.unwrap()) as _ })
    })
    .await
}

pub(crate) async fn mysql_async() -> Driver {
    mariadb_server().sql("mysql", "CREATE DATABASE one");
    let url = format!("mysql://root@127.0.0.1:{}/one", mariadb_server().port());
    Driver::new(Engine::Mysql, move || {
        let url = url.clone();
        Box::pin(async move { Box::new(mysql_async::Conn::from_url(&url).await.unwrap()) as _ })
    })
    .await
}

pub(crate) async fn sqlx_mysql() -> Driver {
    mariadb_server().sql("mysql", "CREATE DATABASE two");
    let url = format!("mysql://root@127.0.0.1:{}/two", mariadb_server().port());
    Driver::new(Engine::Mysql, move || {
        let url = url.clone();
        Box::pin(async move { Box::new(sqlx::MySqlConnection::connect(&url).await.unwrap()) as _ })
    })
    .await
}

pub(crate) async fn rusqlite() -> Driver {
    let folder = tempfile::tempdir().unwrap();
    let path = Arc::new(folder.path().join("db"));
    let open = move || {
        let path = Arc::clone(&path);
        Box::pin(async move {
            let db = rusqlite::Connection::open(&*path).unwrap();
            db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 50").unwrap();
            Box::new(db) as Box<dyn Connection>
        }) as Opened
    };
    Driver { _kept: Some(folder), ..Driver::new(Engine::Sqlite, open).await }
}

pub(crate) async fn sqlx_sqlite() -> Driver {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("db").display());
    let options: sqlx::sqlite::SqliteConnectOptions = url.parse().unwrap();
    let options = options.journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
    let open = move || {
        let options = options.clone();
        Box::pin(async move {
            let mut db = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
            // Not from the start: a connection that was dropped is closed a moment later.
            run(&mut db, "PRAGMA busy_timeout = 50").await;
            Box::new(db) as Box<dyn Connection>
        }) as Opened
    };
    Driver { _kept: Some(folder), ..Driver::new(Engine::Sqlite, open).await }
}
