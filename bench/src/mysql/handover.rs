//! From a release to the return of the next holder's acquisition: within a process, and between two.

use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::server::mariadb::MariaDb;
use mysql_async::prelude::Queryable;

use super::{client, raw, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const ROUNDS: usize = 15;

pub(crate) async fn run(server: &MariaDb) -> Result<Vec<Figure>> {
    let (one, other) = (client(server, "").await?, client(server, "").await?);
    let (waked, also) =
        (client(server, "?wake=get_lock").await?, client(server, "?wake=get_lock").await?);
    let mut floor = raw(server).await?;
    let (mut within, mut polled, mut woken, mut written) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let swap = round % 2 == 0;
        within.push(hand_over(&one, &one, "within").await?);
        let (a, b) = if swap { (&one, &other) } else { (&other, &one) };
        polled.push(hand_over(a, b, "polled").await?);
        let (a, b) = if swap { (&waked, &also) } else { (&also, &waked) };
        woken.push(hand_over(a, b, "woken").await?);
        let started = Instant::now();
        let sql = "UPDATE leasehold_resource SET used = used + 1 WHERE name = 'raw'";
        floor.query_drop(sql).await?;
        written.push(started.elapsed().as_secs_f64());
    }
    let write = median(&written);
    let shedlock = 0.05 / write;
    Ok(vec![
        Figure::at_most("hand-over within a process / a raw write", median(&within) / write, 4.0),
        Figure::told("hand-over to another process, polled / a raw write", median(&polled) / write)
            .unit("x"),
        Figure::told(
            "hand-over to another process, GET_LOCK / a raw write",
            median(&woken) / write,
        )
        .unit("x"),
        Figure::told("what a try every 100 ms waits on average / a raw write", shedlock).unit("x"),
    ])
}

async fn hand_over(first: &Client, second: &Client, name: &'static str) -> Result<f64> {
    let before = first.lock(name).acquire().await?;
    let (sent, waits) = (first.clone(), second.clone());
    // The holder has waited, too: the first of all is not woken for.
    let holding = tokio::spawn(async move { sent.lock(name).acquire().await });
    while first.inspect(name).await?.waiters().count() < 1 {
        tokio::task::yield_now().await;
    }
    let waiting = tokio::spawn(async move {
        let lease = waits.lock(name).acquire().await;
        (Instant::now(), lease)
    });
    while first.inspect(name).await?.waiters().count() < 2 {
        tokio::task::yield_now().await;
    }
    released(before).await?;
    let lease = holding.await??;
    // Time for the waiter to see behind whom it stands now.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let started = Instant::now();
    released(lease).await?;
    let (at, lease) = waiting.await?;
    released(lease?).await?;
    Ok(at.duration_since(started).as_secs_f64())
}
