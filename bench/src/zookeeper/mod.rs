//! Leases in ZooKeeper beside the raw steps they are made of, and beside another client's recipe, on a
//! server of this run's own.

mod handover;
mod uncontended;
mod words;

use leasehold::{Client, Connect};
use leasehold_testkit::server::zookeeper::{Options, Release as Version, Zookeeper};
use zookeeper_client as peer;

use crate::Result;
use crate::figures::Figure;
use crate::lease::released;

pub(crate) fn run() -> Result<Vec<Figure>> {
    // Its writes are synced to the disk, as those of a real one.
    let server = Zookeeper::with(Options {
        release: Version::Newest,
        java: Vec::new(),
        lines: vec!["maxSessionTimeout=600000".into()],
        ..Options::default()
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut figures = uncontended::run(&server).await?;
        figures.extend(handover::run(&server).await?);
        figures.extend(words::run(&server).await?);
        Ok(figures)
    })
}

/// A client, and with it a session, of its own.
async fn client(server: &Zookeeper) -> Result<Client> {
    let url = format!("zookeeper://{}/bench", server.addr());
    Ok(Connect::to(url).open().await?)
}

/// A session of the other client library.
async fn raw(server: &Zookeeper) -> Result<peer::Client> {
    Ok(peer::Client::connect(&server.addr().to_string()).await?)
}
