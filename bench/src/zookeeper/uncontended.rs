//! Acquire and release without contention.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::server::zookeeper::Zookeeper;

use super::{client, peer, raw, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 20;
const PAIRS: usize = 30;

pub(crate) async fn run(server: &Zookeeper) -> Result<Vec<Figure>> {
    let ours = client(server).await?;
    let peer = raw(server).await?;
    let open = peer::CreateMode::Container.with_acls(peer::Acls::anyone_all());
    for path in ["/raw", "/peer"] {
        peer.create(path, b"", &open).await?;
    }
    let mut beside = (Vec::new(), Vec::new());
    for block in 0..=BLOCKS {
        let (floor, recipe) = (raw_block(&peer).await?, peer_block(&peer).await?);
        let mine = our_block(&ours).await?;
        if block > 0 {
            beside.0.push(mine / floor);
            beside.1.push(mine / recipe);
        }
    }
    Ok(vec![
        Figure::at_most("acquire + release / raw create, list, delete", median(&beside.0), 1.15),
        Figure::at_most("acquire + release / zookeeper-client's recipe", median(&beside.1), 1.0),
    ])
}

async fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        released(client.lock("uncontended").acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn raw_block(peer: &peer::Client) -> Result<f64> {
    let open = peer::CreateMode::EphemeralSequential.with_acls(peer::Acls::anyone_all());
    let started = Instant::now();
    for _ in 0..PAIRS {
        let (_, number) = peer.create("/raw/lock-", b"", &open).await?;
        if peer.list_children("/raw").await?.len() != 1 {
            return Err("a raw lock is taken".into());
        }
        peer.delete(&format!("/raw/lock-{number}"), None).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Its release is a drop, of which it tells no end: the next acquisition waits for it.
async fn peer_block(peer: &peer::Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        let prefix = peer::LockPrefix::new_curator("/peer", "lock-")?;
        drop(peer.lock(prefix, b"", peer::Acls::anyone_all()).await?);
    }
    Ok(started.elapsed().as_secs_f64())
}
