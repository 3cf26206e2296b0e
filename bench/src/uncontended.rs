//! Acquire and release in one process, beside the two raw writes that they need.

use std::time::Instant;

use leasehold::blocking::{self, block_on};
use leasehold::{Client, Release};

use crate::figures::Figure;
use crate::raw::Raw;
use crate::stats::median;
use crate::{Result, memory};

const BLOCKS: usize = 40;
/// Two writes a pair: a block holds a whole number of checkpoints of the log.
const PAIRS: u32 = 1000;

pub(crate) fn run() -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let url = format!("sqlite:{}", folder.path().join("store.db").display());
    let client = blocking::connect(&url)?;
    let raw = Raw::open(&folder.path().join("raw.db"))?;
    our_block(&client)?;
    raw_block(&raw)?;
    let mut ratios = Vec::new();
    for block in 0..BLOCKS {
        let (ours, theirs) = if block % 2 == 0 {
            let theirs = raw_block(&raw)?;
            (our_block(&client)?, theirs)
        } else {
            (our_block(&client)?, raw_block(&raw)?)
        };
        ratios.push(ours / theirs);
    }
    let bytes = memory::per_lock(10_000)?;
    Ok(vec![
        Figure::at_most("acquire + release / two raw SQLite writes", median(&ratios), 2.0),
        Figure::at_most("client memory a held lock", bytes, 1024.0).unit("bytes"),
    ])
}

fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        block_on(async {
            let lease = client.lock("bench").acquire().await?;
            match lease.release().await {
                Release::Released => Ok(()),
                other => Err(format!("not released: {other:?}").into()),
            }
        })
        .map_err(|error: Box<dyn std::error::Error>| error)?;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn raw_block(raw: &Raw) -> Result<f64> {
    let started = Instant::now();
    for n in 0..PAIRS {
        raw.write(n.into(), 30)?;
        raw.write(0, 0)?;
    }
    Ok(started.elapsed().as_secs_f64())
}
