//! Acquire and release without contention: ours, the raw requests, and the recipes of other clients.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::zookeeper::Zookeeper;

use super::{client, peer, raw, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 20;
const PAIRS: u32 = 30;
/// A Java machine is slow at first.
const WARM_UP: u32 = 500;

/// Our blocks beside one other's.
#[derive(Default)]
struct Beside(Vec<f64>);

pub(crate) async fn run(server: &Zookeeper) -> Result<Vec<Figure>> {
    let ours = client(server).await?;
    let peer = raw(server).await?;
    let open = peer::CreateMode::Container.with_acls(peer::Acls::anyone_all());
    for path in ["/raw", "/peer"] {
        peer.create(path, b"", &open).await?;
    }
    let hosts = server.addr().to_string();
    let mut curator = Foreign::curator(&hosts, &["session=30000"]);
    let mut kazoo = Foreign::kazoo(&hosts, &["session=30000"]);
    for foreign in [&mut curator, &mut kazoo] {
        foreign_block(foreign, WARM_UP)?;
    }
    let mut beside: [Beside; 5] = Default::default();
    for block in 0..=BLOCKS {
        let others = [
            raw_block(&peer, false).await?,
            raw_block(&peer, true).await?,
            peer_block(&peer).await?,
            foreign_block(&mut curator, PAIRS)?,
            foreign_block(&mut kazoo, PAIRS)?,
        ];
        let mine = our_block(&ours).await?;
        if block > 0 {
            beside.iter_mut().zip(others).for_each(|(beside, other)| beside.0.push(mine / other));
        }
    }
    let [plain, piped, recipe, curator, kazoo] = beside.map(|beside| median(&beside.0));
    Ok(vec![
        Figure::at_most("acquire + release / raw create, list, delete", plain, 1.15),
        Figure::told("acquire + release / raw create and list at once, delete", piped).unit("x"),
        Figure::at_most("acquire + release / zookeeper-client's recipe", recipe, 1.0),
        Figure::at_most("acquire + release / Curator's mutex", curator, 1.0),
        Figure::at_most("acquire + release / kazoo's lock", kazoo, 1.0),
    ])
}

async fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        released(client.lock("uncontended").acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// What a lock needs at least; `at_once` with the list sent behind the create, unanswered yet.
async fn raw_block(peer: &peer::Client, at_once: bool) -> Result<f64> {
    let open = peer::CreateMode::EphemeralSequential.with_acls(peer::Acls::anyone_all());
    let started = Instant::now();
    for _ in 0..PAIRS {
        let create = peer.create("/raw/lock-", b"", &open);
        let (made, listed) = if at_once {
            futures_util::join!(create, peer.list_children("/raw"))
        } else {
            (create.await, peer.list_children("/raw").await)
        };
        let ((_, number), listed) = (made?, listed?);
        if listed.len() != 1 {
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

/// By its own clock, without the word that asks for it.
fn foreign_block(foreign: &mut Foreign, pairs: u32) -> Result<f64> {
    let told = foreign.call("bench", &format!("mutex.pairs /foreign {pairs}")).text;
    let span = told.strip_prefix("pairs ").and_then(|span| span.parse::<f64>().ok());
    Ok(span.ok_or(told)? / 1e9)
}
