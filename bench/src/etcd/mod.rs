//! Leases in etcd beside the raw steps they are made of, beside Go's `concurrency.Mutex` and beside
//! the server's own lock service, on a server of this run's own.

mod contended;
mod handover;
mod uncontended;

use leasehold::etcd::EtcdConfig;
use leasehold::etcd::raw::Raw;
use leasehold::{Client, Connect};
use leasehold_testkit::server::etcd::{Etcd, Options, Release as Version};

use crate::Result;
use crate::figures::Figure;
use crate::lease::released;

pub(crate) fn run() -> Result<Vec<Figure>> {
    // Its writes are synced to the disk, as those of a real one.
    let release = Version::Newest;
    let server = Etcd::with(Options { release, durable: true, ..Options::default() });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut figures = uncontended::run(&server).await?;
        figures.extend(handover::run(&server).await?);
        figures.extend(contended::run(&server).await?);
        Ok(figures)
    })
}

/// A client, and with it leases, of its own.
async fn client(server: &Etcd) -> Result<Client> {
    let url = format!("etcd://{}", server.addr());
    Ok(Connect::to(url).open().await?)
}

/// Plain requests over a connection of their own.
fn raw(server: &Etcd) -> Result<Raw> {
    Ok(Raw::new(&EtcdConfig::new("127.0.0.1", server.port()))?)
}
