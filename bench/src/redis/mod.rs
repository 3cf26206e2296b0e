//! Leases in Redis beside raw round trips, beside plain scripts over another client, and beside
//! `rslock`, on a server of this run's own.

mod contended;
mod renewal;
mod uncontended;

use ::redis::aio::MultiplexedConnection;
use leasehold::{Client, Connect};
use leasehold_testkit::server::redis::Redis;

use crate::Result;
use crate::figures::Figure;
use crate::lease::released;

pub(crate) fn run() -> Result<Vec<Figure>> {
    let server = Redis::start();
    // One thread: what a caller waits for comes back on it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut figures = runtime.block_on(uncontended::run(&server))?;
    figures.extend(runtime.block_on(contended::run(&server))?);
    figures.extend(runtime.block_on(renewal::run(&server))?);
    Ok(figures)
}

/// A client with connections of its own, as another process would have.
async fn client(server: &Redis) -> Result<Client> {
    Ok(Connect::to(url(server)).open().await?)
}

fn url(server: &Redis) -> String {
    format!("redis://{}", server.addr())
}

/// A connection of the client library that most use.
async fn peer(server: &Redis) -> Result<MultiplexedConnection> {
    Ok(::redis::Client::open(url(server))?.get_multiplexed_async_connection().await?)
}
