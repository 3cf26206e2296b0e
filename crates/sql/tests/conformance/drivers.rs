//! Each driver: how to connect, and how to begin a transaction by its own means.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use leasehold_sql::{Connection, Engine, Transaction, Value};
use leasehold_testkit::server::{mariadb::MariaDb, postgres::Postgres};
use sqlx::Connection as _;

type Opened = Pin<Box<dyn Future<Output = Box<dyn Connection>>>>;

/// One adapter, and what it is tried on.
pub(crate) struct Driver {
    pub(crate) engine: Engine,
    open: Box<dyn Fn() -> Opened>,
    /// Ends the session of a connection behind its back: the server, if there is one.
    pub(crate) kill: Option<Box<dyn Fn()>>,
    /// Keeps what the connections go to.
    _kept: Box<dyn std::any::Any>,
}

impl Driver {
    pub(crate) async fn open(&self) -> Box<dyn Connection> {
        (self.open)().await
    }

    /// The statement of this engine.
    pub(crate) fn sql<'a>(&self, postgres: &'a str, mysql: &'a str, sqlite: &'a str) -> &'a str {
        match self.engine {
            Engine::Postgres => postgres,
            Engine::Mysql => mysql,
            _ => sqlite,
        }
    }
}

/// The driver's own transaction: written in one and rolled back, in another and committed.
pub(crate) async fn write(tx: &mut (impl Transaction + ?Sized), postgres: &str, other: &str) {
    let statement = if tx.engine() == Engine::Postgres { postgres } else { other };
    assert_eq!(tx.execute(statement, &[Value::Int(1)]).await.unwrap(), 1);
    let rows = tx.rows("SELECT n FROM own", &[]).await.unwrap();
    assert_eq!(rows[0].int(0), Some(1));
}

const MAKE: &str = "CREATE TABLE own (n BIGINT)";
const POSTGRES: &str = "INSERT INTO own VALUES ($1)";
const OTHER: &str = "INSERT INTO own VALUES (?)";

/// By the macro, since each driver has types of its own for the same steps.
macro_rules! own_transaction {
    ($db:ident, $begin:expr) => {{
        $db.execute(MAKE, &[]).await.unwrap();
        let mut tx = $begin;
        write(&mut tx, POSTGRES, OTHER).await;
        tx.rollback().await.unwrap();
        assert!($db.rows("SELECT n FROM own", &[]).await.unwrap().is_empty());
        let mut tx = $begin;
        write(&mut tx, POSTGRES, OTHER).await;
        tx.commit().await.unwrap();
        assert_eq!($db.rows("SELECT n FROM own", &[]).await.unwrap().len(), 1);
    }};
}

async fn tokio_postgres_client(port: u16) -> tokio_postgres::Client {
    let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) =
        tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(async { drop(connection.await) });
    client
}

pub(crate) async fn tokio_postgres_0_7() -> Driver {
    let server = Arc::new(Postgres::start());
    let port = server.port();
    let mut db = tokio_postgres_client(port).await;
    own_transaction!(db, db.transaction().await.unwrap());
    postgres(server, move || {
        Box::pin(async move { Box::new(tokio_postgres_client(port).await) as _ })
    })
}

pub(crate) async fn sqlx_0_9_postgres() -> Driver {
    let server = Arc::new(Postgres::start());
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    let mut db = sqlx::PgConnection::connect(&url).await.unwrap();
    own_transaction!(db, db.begin().await.unwrap());
    postgres(server, move || {
        let url = url.clone();
        Box::pin(async move { Box::new(sqlx::PgConnection::connect(&url).await.unwrap()) as _ })
    })
}

fn postgres(server: Arc<Postgres>, open: impl Fn() -> Opened + 'static) -> Driver {
    let killed = Arc::clone(&server);
    Driver {
        engine: Engine::Postgres,
        open: Box::new(open),
        kill: Some(Box::new(move || killed.server().kill9())),
        _kept: Box::new(server),
    }
}

pub(crate) async fn mysql_async_0_37() -> Driver {
    let server = mariadb();
    let url = format!("mysql://root@127.0.0.1:{}/trial", server.port());
    let mut db = mysql_async::Conn::from_url(&url).await.unwrap();
    own_transaction!(db, db.start_transaction(mysql_async::TxOpts::default()).await.unwrap());
    mysql(server, move || {
        let url = url.clone();
        Box::pin(async move { Box::new(mysql_async::Conn::from_url(&url).await.unwrap()) as _ })
    })
}

pub(crate) async fn sqlx_0_9_mysql() -> Driver {
    let server = mariadb();
    let url = format!("mysql://root@127.0.0.1:{}/trial", server.port());
    let mut db = sqlx::MySqlConnection::connect(&url).await.unwrap();
    own_transaction!(db, db.begin().await.unwrap());
    mysql(server, move || {
        let url = url.clone();
        Box::pin(async move { Box::new(sqlx::MySqlConnection::connect(&url).await.unwrap()) as _ })
    })
}

fn mariadb() -> Arc<MariaDb> {
    let server = Arc::new(MariaDb::start());
    server.sql("mysql", "CREATE DATABASE trial CHARACTER SET utf8mb4");
    server
}

fn mysql(server: Arc<MariaDb>, open: impl Fn() -> Opened + 'static) -> Driver {
    let killed = Arc::clone(&server);
    Driver {
        engine: Engine::Mysql,
        open: Box::new(open),
        kill: Some(Box::new(move || killed.server().kill9())),
        _kept: Box::new(server),
    }
}

pub(crate) async fn rusqlite_0_40() -> Driver {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let open = move || {
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA busy_timeout = 50").unwrap();
        db
    };
    let mut db = open();
    Connection::execute(&mut db, MAKE, &[]).await.unwrap();
    let mut tx = db.transaction().unwrap();
    write(&mut tx, POSTGRES, OTHER).await;
    let mut inner = tx.savepoint().unwrap();
    Transaction::execute(&mut inner, "DELETE FROM own", &[]).await.unwrap();
    inner.rollback().unwrap();
    drop(inner);
    tx.commit().unwrap();
    assert_eq!(db.rows("SELECT n FROM own", &[]).await.unwrap().len(), 1);
    Driver {
        engine: Engine::Sqlite,
        open: Box::new(move || {
            let db = open();
            Box::pin(async move { Box::new(db) as _ })
        }),
        kill: None,
        _kept: Box::new(folder),
    }
}

pub(crate) async fn sqlx_0_9_sqlite() -> Driver {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("db").display());
    let options: sqlx::sqlite::SqliteConnectOptions = url.parse().unwrap();
    let options = options
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .busy_timeout(std::time::Duration::from_millis(50));
    let mut db = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
    own_transaction!(db, db.begin().await.unwrap());
    Driver {
        engine: Engine::Sqlite,
        open: Box::new(move || {
            let options = options.clone();
            Box::pin(async move {
                Box::new(sqlx::SqliteConnection::connect_with(&options).await.unwrap()) as _
            })
        }),
        kill: None,
        _kept: Box::new(folder),
    }
}
