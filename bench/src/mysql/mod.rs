//! Leases in MariaDB beside the raw statements they are made of, on a server of this run's own.

mod handover;
mod many;
mod uncontended;

use leasehold::{Client, Connect};
use leasehold_testkit::server::mariadb::MariaDb;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, OptsBuilder};

use crate::Result;
use crate::figures::Figure;
use crate::lease::released;

pub(crate) fn run() -> Result<Vec<Figure>> {
    // Its commits are synced to the disk, as those of a real one.
    let server = MariaDb::start();
    server.sql("mysql", "CREATE DATABASE bench");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut figures = uncontended::run(&server).await?;
        figures.extend(many::run(&server).await?);
        figures.extend(handover::run(&server).await?);
        let deadlocks = status(&server, "Innodb_deadlocks")?;
        figures.push(Figure::exactly("deadlocks in all of it", deadlocks, 0.0));
        Ok(figures)
    })
}

/// A client, and with it connections, of its own.
async fn client(server: &MariaDb, options: &str) -> Result<Client> {
    let url = format!("mysql://root@127.0.0.1:{}/bench{options}", server.port());
    Ok(Connect::to(url).open().await?)
}

/// A plain connection.
async fn raw(server: &MariaDb) -> Result<Conn> {
    let opts = OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(server.port())
        .prefer_socket(false)
        .stmt_cache_size(0)
        .user(Some("root"))
        .db_name(Some("bench"));
    let mut conn = Conn::new(opts).await?;
    conn.query_drop(
        "SET SESSION time_zone = '+00:00'; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    )
    .await?;
    Ok(conn)
}

/// A counter of the server.
fn status(server: &MariaDb, name: &str) -> Result<f64> {
    let line = server.sql("mysql", &format!("SHOW GLOBAL STATUS LIKE '{name}'"));
    let value = line.split_whitespace().next_back().ok_or("no such counter")?;
    Ok(value.parse()?)
}
