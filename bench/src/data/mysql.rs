//! On MariaDB, by mysql_async.

use leasehold_data::idempotency::Keys;
use leasehold_testkit::server::mariadb::{MariaDb, Options};
use mysql_async::{IsolationLevel, OptsBuilder, TxOpts};

use super::{CONNECTIONS, Orders, measure};
use crate::Result;
use crate::figures::Figure;

const TABLES: &str = "
    CREATE DATABASE shop;
    CREATE TABLE shop.stock (sku BIGINT PRIMARY KEY, price BIGINT, pieces BIGINT CHECK (pieces >= 0));
    INSERT INTO shop.stock SELECT seq, 100 + seq, 1000000000 FROM seq_0_to_999;
    CREATE TABLE shop.orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, sku BIGINT, price BIGINT, note TEXT)";

pub(super) fn run() -> Result<Vec<Figure>> {
    // With a log that is not full all the time.
    let args = ["--innodb-log-file-size=256M", "--innodb-buffer-pool-size=128M"];
    let server =
        MariaDb::with(Options { args: args.map(str::to_owned).to_vec(), ..Options::default() });
    server.sql("mysql", TABLES);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let keys = Keys::new();
        let mut conns = Vec::new();
        for _ in 0..CONNECTIONS {
            conns.push(connect(server.port()).await?);
        }
        let mut tx = conns.first_mut().ok_or("no connection")?.begin().await?;
        keys.create_table(&mut tx).await?;
        tx.commit().await?;
        let figures = measure("MariaDB", conns, &keys).await;
        // Connections that are dropped close in time of their own; the server ends now.
        drop(server);
        figures
    })
}

async fn connect(port: u16) -> Result<mysql_async::Conn> {
    let opts = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .prefer_socket(false)
        .user(Some("root"))
        .db_name(Some("shop"));
    Ok(mysql_async::Conn::new(opts).await?)
}

impl Orders for mysql_async::Conn {
    type Tx<'a> = mysql_async::Transaction<'a>;

    const STATEMENTS: [&'static str; 3] = [
        "SELECT price FROM stock WHERE sku = ?",
        "UPDATE stock SET pieces = pieces - 1 WHERE sku = ? AND pieces >= 1",
        "INSERT INTO orders (sku, price, note) VALUES (?, ?, ?)",
    ];

    async fn begin(&mut self) -> Result<Self::Tx<'_>> {
        let mut opts = TxOpts::default();
        opts.with_isolation_level(IsolationLevel::ReadCommitted);
        Ok(self.start_transaction(opts).await?)
    }

    async fn commit(tx: Self::Tx<'_>) -> Result<()> {
        Ok(tx.commit().await?)
    }
}
