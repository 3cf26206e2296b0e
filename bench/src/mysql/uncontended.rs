//! Acquire and release without contention, and tries that are refused.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::server::mariadb::MariaDb;
use mysql_async::Conn;
use mysql_async::prelude::Queryable;

use super::{client, raw, released, status};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 20;
const PAIRS: usize = 30;
const TRIES: usize = 200;

pub(crate) async fn run(server: &MariaDb) -> Result<Vec<Figure>> {
    let ours = client(server, "").await?;
    let mut floor = raw(server).await?;
    // The first makes the rows.
    for name in ["uncontended", "raw"] {
        released(ours.lock(name).acquire().await?).await?;
    }
    let (mut against_pairs, mut against_updates) = (Vec::new(), Vec::new());
    for block in 0..=BLOCKS {
        let pairs = raw_block(&mut floor, true).await?;
        let updates = raw_block(&mut floor, false).await?;
        let mine = our_block(&ours).await?;
        if block > 0 {
            against_pairs.push(mine / pairs);
            against_updates.push(mine / updates);
        }
    }
    let held = ours.lock("held").acquire().await?;
    let before = written(server)?;
    for _ in 0..TRIES {
        if ours.lock("held").try_acquire().await?.is_some() {
            return Err("a held lock was granted".into());
        }
    }
    let wrote = written(server)? - before;
    released(held).await?;
    Ok(vec![
        Figure::at_most(
            "acquire + release / the same statements raw",
            median(&against_pairs),
            1.15,
        ),
        Figure::told("acquire + release / two bare UPDATEs raw", median(&against_updates))
            .unit("x"),
        Figure::exactly("rows written by 200 refused tries", wrote, 0.0),
    ])
}

fn written(server: &MariaDb) -> Result<f64> {
    let kinds = ["Handler_update", "Handler_write", "Handler_delete"];
    kinds.iter().map(|kind| status(server, kind)).sum()
}

async fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        released(client.lock("uncontended").acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// The store's own statements, or the least that a lease in a table takes.
async fn raw_block(conn: &mut Conn, same: bool) -> Result<f64> {
    let fill = |sql: &str| {
        sql.replace("{name}", "'raw'")
            .replace("{claim}", "x'000102030405060708090A0B0C0D0E0F'")
            .replace("{holder}", "x'000102030405060708090A0B0C0D0E0F'")
            .replace("{label}", "'raw'")
            .replace("{term}", "30000000")
            .replace("{life}", "'term'")
    };
    // The claim is the same each time: what is remembered of released ones is taken away.
    let enter = fill(include_str!("../../../stores/mysql/src/enter.sql"));
    let enter = enter.replace("LOCATE(x'000102030405060708090A0B0C0D0E0F', past) = 0", "1 = 1");
    let leave = fill(include_str!("../../../stores/mysql/src/leave.sql"));
    let bare = [
        "UPDATE leasehold_resource SET token = token + 1, h_claim = 'x', h_until = 1 \
         WHERE name = 'raw' AND h_claim IS NULL"
            .to_owned(),
        "UPDATE leasehold_resource SET h_claim = NULL, h_until = NULL \
         WHERE name = 'raw' AND h_claim IS NOT NULL"
            .to_owned(),
    ];
    let statements = if same { [enter, leave] } else { bare };
    let started = Instant::now();
    for _ in 0..PAIRS {
        for sql in &statements {
            let mut answer = conn.query_iter(sql.as_str()).await?;
            if answer.affected_rows() != 1 {
                return Err("a raw lease is taken".into());
            }
            while answer.columns().is_some() {
                let _rows: Vec<mysql_async::Row> = answer.collect().await?;
            }
        }
    }
    Ok(started.elapsed().as_secs_f64())
}
