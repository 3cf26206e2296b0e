//! What it costs to hold many locks.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::iter;
use leasehold_testkit::server::redis::Redis;

use super::client;
use crate::figures::Figure;
use crate::{Result, sys};

const LOCKS: usize = 10_000;
/// A whole number of rounds of renewals: each comes after a third of the term.
const WATCHED: Duration = Duration::from_secs(20);

pub(crate) async fn run(server: &Redis) -> Result<Vec<Figure>> {
    let client = client(server).await?;
    let acquired = iter(0..LOCKS).map(|n| {
        let client = client.clone();
        async move { client.lock(&format!("held-{n}")).ttl(Duration::from_secs(30)).acquire().await }
    });
    let mut leases = Vec::with_capacity(LOCKS);
    let mut acquired = std::pin::pin!(acquired.buffer_unordered(64));
    while let Some(lease) = acquired.next().await {
        leases.push(lease?);
    }
    let (before, ours) = (server_cpu(server)?, sys::cpu_seconds()?);
    let started = Instant::now();
    tokio::time::sleep(WATCHED).await;
    let span = started.elapsed().as_secs_f64();
    let (server_share, our_share) =
        ((server_cpu(server)? - before) / span, (sys::cpu_seconds()? - ours) / span);
    if leases.iter().any(|lease| lease.valid_for().is_zero()) {
        return Err("a lease was lost".into());
    }
    Ok(vec![
        Figure::at_most("10,000 held locks: our share of a core", our_share * 100.0, 2.0).unit("%"),
        Figure::at_most("10,000 held locks: the server's", server_share * 100.0, 2.0).unit("%"),
    ])
}

/// How long the server has worked, in seconds.
fn server_cpu(server: &Redis) -> Result<f64> {
    let told = server.cli(&["INFO", "cpu"]);
    let of = |name: &str| -> Option<f64> {
        told.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let both = of("used_cpu_sys:").zip(of("used_cpu_user:"));
    let (system, user) = both.ok_or("the server does not tell of its work")?;
    Ok(system + user)
}
