//! Acquire and release without contention, and tries that fail.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::server::postgres::Postgres;

use super::raw::Raw;
use super::{client, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 16;
const PAIRS: usize = 25;
const TRIES: usize = 100;

pub(crate) async fn run(server: &Postgres) -> Result<Vec<Figure>> {
    let ours = client(server).await?;
    let raw = Raw::open(server, "uncontended").await?;
    our_block(&ours).await?;
    raw_block(&raw).await?;
    let mut ratios = Vec::new();
    for block in 0..BLOCKS {
        let (mine, theirs) = if block % 2 == 0 {
            let theirs = raw_block(&raw).await?;
            (our_block(&ours).await?, theirs)
        } else {
            (our_block(&ours).await?, raw_block(&raw).await?)
        };
        ratios.push(mine / theirs);
    }
    Ok(vec![
        Figure::at_most("acquire + release / two raw updates", median(&ratios), 1.15),
        Figure::exactly("WAL bytes of a try that fails", failed_try(server, &ours).await?, 0.0),
    ])
}

async fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        released(client.lock("uncontended").acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn raw_block(raw: &Raw) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        if !raw.take().await? {
            return Err("a raw row is taken".into());
        }
        raw.free().await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// The least of a few blocks: the server writes a note of its own now and then.
async fn failed_try(server: &Postgres, client: &Client) -> Result<f64> {
    let held = client.lock("held").acquire().await?;
    server.sql("CHECKPOINT");
    let mut least = f64::INFINITY;
    for _ in 0..4 {
        let before = server.sql("SELECT pg_current_wal_insert_lsn()");
        for _ in 0..TRIES {
            if client.lock("held").try_acquire().await?.is_some() {
                return Err("a held lock was granted".into());
            }
        }
        let sql = format!("SELECT pg_current_wal_insert_lsn() - '{before}'");
        let bytes: f64 = server.sql(&sql).parse()?;
        #[allow(clippy::cast_precision_loss)]
        let each = bytes / TRIES as f64;
        least = least.min(each);
    }
    released(held).await?;
    Ok(least)
}
