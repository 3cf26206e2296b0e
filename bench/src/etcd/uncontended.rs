//! Acquire and release without contention.

use std::time::Instant;

use leasehold::Client;
use leasehold::etcd::raw::{Raw, RawCompare, RawOp};
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::etcd::Etcd;

use super::{client, raw, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 20;
const PAIRS: usize = 30;

pub(crate) async fn run(server: &Etcd) -> Result<Vec<Figure>> {
    let ours = client(server).await?;
    let raw = raw(server)?;
    let lease = raw.grant(600).await?;
    let mut go = Foreign::etcd(&server.addr().to_string(), &["ttl=60"]);
    let mut beside = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for block in 0..=BLOCKS {
        let floor = raw_block(&raw, lease).await?;
        let same = same_block(&raw, lease).await?;
        let mine = our_block(&ours).await?;
        let service = service_block(&raw, lease).await?;
        let mutex = go_block(&mut go)?;
        if block > 0 {
            beside.0.push(mine / floor);
            beside.1.push(mine / service);
            beside.2.push(mine / mutex);
            beside.3.push(same / floor);
        }
    }
    Ok(vec![
        Figure::at_most("acquire + release / one txn + one delete", median(&beside.0), 1.15),
        Figure::told(
            "  as many operations in two raw txns / one txn + one delete",
            median(&beside.3),
        )
        .unit("x"),
        Figure::at_most("acquire + release / the lock service's", median(&beside.1), 1.0),
        Figure::at_most("acquire + release / Go's, over a pipe", median(&beside.2), 1.0),
    ])
}

async fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        released(client.lock("uncontended").acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn raw_block(raw: &Raw, lease: i64) -> Result<f64> {
    let key = b"raw/lock".to_vec();
    let started = Instant::now();
    for _ in 0..PAIRS {
        let absent = RawCompare { key: key.clone(), range_end: vec![], revision: 0, equal: true };
        let put = RawOp::Put(key.clone(), vec![], lease);
        if !raw.txn(vec![absent], vec![put], vec![]).await?.0 {
            return Err("a raw lock is taken".into());
        }
        raw.txn(vec![], vec![RawOp::Delete(key.clone())], vec![]).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// What ours has in its two transactions, without the rest of it.
async fn same_block(raw: &Raw, lease: i64) -> Result<f64> {
    let (key, counter, out) = (b"same/lock".to_vec(), b"same.in".to_vec(), b"same.out".to_vec());
    let value = vec![b'x'; 220];
    let compare =
        |key: &[u8], equal| RawCompare { key: key.to_vec(), range_end: vec![], revision: 0, equal };
    let started = Instant::now();
    for _ in 0..PAIRS {
        let absent = vec![compare(&key, true), compare(b"same.tomb", true)];
        let enter = vec![
            RawOp::Put(counter.clone(), b"1700000000000000".to_vec(), 0),
            RawOp::Put(key.clone(), value.clone(), lease),
            RawOp::Range(b"same/".to_vec(), b"same0".to_vec()),
            RawOp::Range(b"same.".to_vec(), b"same/".to_vec()),
        ];
        if !raw.txn(absent, enter, vec![]).await?.0 {
            return Err("a raw lock is taken".into());
        }
        let leave = vec![RawOp::Delete(key.clone()), RawOp::Put(out.clone(), value.clone(), 0)];
        raw.txn(vec![compare(&key, false)], leave, vec![]).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn service_block(raw: &Raw, lease: i64) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        let key = raw.server_lock("service", lease).await?;
        raw.server_unlock(key).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn go_block(go: &mut Foreign) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        let locked = go.call("ann", "lock go").text;
        let unlocked = go.call("ann", "unlock go").text;
        if !locked.starts_with("locked") || unlocked != "unlocked" {
            return Err(format!("Go says {locked} and {unlocked}").into());
        }
    }
    Ok(started.elapsed().as_secs_f64())
}
