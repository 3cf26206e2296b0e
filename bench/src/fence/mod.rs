//! A fenced write beside the bare one, each a transaction of its own that is synced to the disk: on
//! PostgreSQL, MariaDB and SQLite.

use std::time::Instant;

use leasehold_fence::sql::{create_table, enter};
use leasehold_fence::{Access, Mark, Resource, Token};
use leasehold_sql::{Connection, Transaction, now};
use leasehold_testkit::server::mariadb::MariaDb;
use leasehold_testkit::server::postgres::{Options, Postgres};
use mysql_async::{Conn, TxOpts};

use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 30;
const WRITES: usize = 50;
/// A holder writes some times under one token; then the next one comes.
const WRITES_A_TOKEN: usize = 5;

const MAKE: &str = "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT)";
const FILL: &str = "INSERT INTO account VALUES (1, 0)";
const WRITE: &str = "UPDATE account SET balance = balance + 1 WHERE id = 1";

pub(crate) fn run() -> Result<Vec<Figure>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut figures = runtime.block_on(async {
        Ok::<_, Box<dyn std::error::Error>>(vec![on_postgres().await?, on_mysql().await?])
    })?;
    figures.push(on_sqlite()?);
    Ok(figures)
}

fn figure(engine: &str, ratios: &[f64]) -> Figure {
    let what = format!("a fenced write / a bare one, {engine}");
    Figure::at_most(what, median(ratios), 1.3)
}

/// Tokens, in the order in which their holders come.
struct Tokens {
    given: u64,
    of: Resource,
}

impl Tokens {
    fn new() -> Result<Tokens> {
        Ok(Tokens { given: 0, of: Resource::new("account/1")? })
    }

    fn next(&mut self, write: usize) -> Result<Mark> {
        if write.is_multiple_of(WRITES_A_TOKEN) {
            self.given += 1;
        }
        Ok(Mark::from(Token::new(self.given).ok_or("no token")?))
    }
}

async fn write<T: Transaction>(tx: &mut T, fence: Option<(&Resource, Mark)>) -> Result<()> {
    if let Some((of, mark)) = fence {
        enter(tx, of, Access::Exclusive, mark).await?;
    }
    match tx.execute(WRITE, &[]).await? {
        1 => Ok(()),
        _ => Err("nothing was written".into()),
    }
}

/// By the macro, since a transaction of each driver is of a type of its own.
macro_rules! block {
    ($db:ident, $tokens:expr, $begin:expr) => {{
        let started = Instant::now();
        let mut tokens: Option<&mut Tokens> = $tokens;
        for n in 0..WRITES {
            let mark = tokens.as_mut().map(|tokens| tokens.next(n)).transpose()?;
            let mut tx = $begin;
            let fence = tokens.as_ref().zip(mark).map(|(tokens, mark)| (&tokens.of, mark));
            write(&mut tx, fence).await?;
            tx.commit().await?;
        }
        started.elapsed().as_secs_f64()
    }};
}

macro_rules! ratios {
    ($db:ident, $begin:expr) => {{
        let mut tokens = Tokens::new()?;
        let mut ratios = Vec::new();
        for block in 0..=BLOCKS {
            let (fenced, bare) = if block % 2 == 0 {
                let bare = block!($db, None, $begin);
                (block!($db, Some(&mut tokens), $begin), bare)
            } else {
                (block!($db, Some(&mut tokens), $begin), block!($db, None, $begin))
            };
            // The first prepares.
            if block > 0 {
                ratios.push(fenced / bare);
            }
        }
        ratios
    }};
}

async fn made<C: Connection>(db: &mut C) -> Result<()> {
    create_table(db).await?;
    db.execute(MAKE, &[]).await?;
    db.execute(FILL, &[]).await?;
    Ok(())
}

async fn on_postgres() -> Result<Figure> {
    let server = Postgres::with(Options {
        settings: vec!["autovacuum = off".into(), "checkpoint_timeout = '1h'".into()],
        ..Options::default()
    });
    let config = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", server.port());
    let (mut db, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await?;
    tokio::spawn(async { drop(connection.await) });
    made(&mut db).await?;
    let ratios = ratios!(db, db.transaction().await?);
    Ok(figure("PostgreSQL", &ratios))
}

async fn on_mysql() -> Result<Figure> {
    let server = MariaDb::start();
    server.sql("mysql", "CREATE DATABASE bench");
    let url = format!("mysql://root@127.0.0.1:{}/bench?prefer_socket=false", server.port());
    let mut db = Conn::from_url(&url).await?;
    made(&mut db).await?;
    let ratios = ratios!(db, db.start_transaction(TxOpts::default()).await?);
    Ok(figure("MariaDB", &ratios))
}

fn on_sqlite() -> Result<Figure> {
    let folder = tempfile::tempdir()?;
    let mut db = rusqlite::Connection::open(folder.path().join("db"))?;
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")?;
    now(made(&mut db))?;
    let mut tokens = Tokens::new()?;
    let mut ratios = Vec::new();
    for block in 0..=BLOCKS {
        let (fenced, bare) = if block % 2 == 0 {
            let bare = sqlite_block(&mut db, None)?;
            (sqlite_block(&mut db, Some(&mut tokens))?, bare)
        } else {
            (sqlite_block(&mut db, Some(&mut tokens))?, sqlite_block(&mut db, None)?)
        };
        if block > 0 {
            ratios.push(fenced / bare);
        }
    }
    Ok(figure("SQLite", &ratios))
}

fn sqlite_block(db: &mut rusqlite::Connection, mut tokens: Option<&mut Tokens>) -> Result<f64> {
    let started = Instant::now();
    for n in 0..WRITES {
        let mark = tokens.as_mut().map(|tokens| tokens.next(n)).transpose()?;
        let mut tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let fence = tokens.as_ref().zip(mark).map(|(tokens, mark)| (&tokens.of, mark));
        now(write(&mut tx, fence))?;
        tx.commit()?;
    }
    Ok(started.elapsed().as_secs_f64())
}
