//! Leases in PostgreSQL beside the raw statements they are made of, and beside what is otherwise
//! written for it, on a server of this run's own.

mod handover;
mod many;
mod raw;
mod uncontended;
mod words;

use leasehold::{Client, Connect};
use leasehold_testkit::server::postgres::{Options, Postgres};

use crate::Result;
use crate::figures::Figure;
use crate::lease::released;

pub(crate) fn run() -> Result<Vec<Figure>> {
    let server = Postgres::with(Options {
        settings: vec!["autovacuum = off".into(), "checkpoint_timeout = '1h'".into()],
        ..Options::default()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut figures = uncontended::run(&server).await?;
        figures.extend(many::run(&server).await?);
        figures.extend(handover::run(&server).await?);
        figures.extend(words::run(&server).await?);
        let sql = "SELECT sum(deadlocks) FROM pg_stat_database";
        let deadlocks = server.sql(sql).parse()?;
        figures.push(Figure::exactly("deadlocks in all of it", deadlocks, 0.0));
        Ok(figures)
    })
}

/// A client, and with it connections, of its own.
async fn client(server: &Postgres) -> Result<Client> {
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port());
    Ok(Connect::to(url).open().await?)
}
