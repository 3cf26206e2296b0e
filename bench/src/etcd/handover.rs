//! From a release to the return of the next holder's acquisition.

use std::time::Instant;

use leasehold::Client;
use leasehold::etcd::raw::RawOp;
use leasehold_testkit::server::etcd::Etcd;

use super::{client, raw, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const ROUNDS: usize = 150;

pub(crate) async fn run(server: &Etcd) -> Result<Vec<Figure>> {
    let (one, other) = (client(server).await?, client(server).await?);
    let raw = raw(server)?;
    let (mut handed, mut written) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let (first, second) = if round % 2 == 0 { (&one, &other) } else { (&other, &one) };
        handed.push(hand_over(first, second).await?);
        let started = Instant::now();
        raw.txn(vec![], vec![RawOp::Put(b"raw/write".to_vec(), b"x".to_vec(), 0)], vec![]).await?;
        written.push(started.elapsed().as_secs_f64());
    }
    let ratio = median(&handed) / median(&written);
    Ok(vec![Figure::at_most("hand-over / a raw write", ratio, 1.5)])
}

async fn hand_over(first: &Client, second: &Client) -> Result<f64> {
    let lease = first.lock("handed").acquire().await?;
    let waiter = second.clone();
    let waiting = tokio::spawn(async move {
        let lease = waiter.lock("handed").acquire().await;
        (Instant::now(), lease)
    });
    while first.inspect("handed").await?.waiters().count() == 0 {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    released(lease).await?;
    let (at, lease) = waiting.await?;
    released(lease?).await?;
    Ok(at.duration_since(started).as_secs_f64())
}
