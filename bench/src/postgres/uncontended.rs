//! Acquire and release without contention, and tries that fail.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::server::postgres::Postgres;

use super::raw::{Raw, Same};
use super::{client, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 16;
const PAIRS: usize = 25;
const TRIES: usize = 100;

pub(crate) async fn run(server: &Postgres) -> Result<Vec<Figure>> {
    let ours = client(server).await?;
    our_block(&ours).await?;
    let (mut same, bare) = (Same::open(server).await?, Raw::open(server, "uncontended").await?);
    same_block(&mut same).await?;
    bare_block(&bare).await?;
    let (mut to_same, mut to_bare) = (Vec::new(), Vec::new());
    for block in 0..BLOCKS {
        // Ours in the middle, each of the others as often before it as after it.
        let (first, second);
        if block % 2 == 0 {
            first = same_block(&mut same).await?;
            let mine = our_block(&ours).await?;
            second = bare_block(&bare).await?;
            to_same.push(mine / first);
            to_bare.push(mine / second);
        } else {
            first = bare_block(&bare).await?;
            let mine = our_block(&ours).await?;
            second = same_block(&mut same).await?;
            to_bare.push(mine / first);
            to_same.push(mine / second);
        }
    }
    Ok(vec![
        Figure::at_most(
            "acquire + release / the same two statements sent raw",
            median(&to_same),
            1.15,
        ),
        Figure::told(
            "acquire + release / two bare UPDATEs that are both waited for",
            median(&to_bare),
        )
        .unit("x"),
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

async fn same_block(same: &mut Same) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        same.pair().await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn bare_block(raw: &Raw) -> Result<f64> {
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
