//! Many tasks of one process, each with a name of its own: their requests travel together.

use std::time::Instant;

use leasehold::Client;

use crate::Result;
use crate::lease::released;

const TASKS: usize = 64;
const ROUNDS: usize = 10;

/// How long the pairs of all tasks took, in seconds, one after the other and at once; and how many
/// they were.
pub(crate) struct Many {
    pub(crate) alone: f64,
    pub(crate) together: f64,
    pub(crate) pairs: f64,
}

pub(crate) async fn run(client: &Client) -> Result<Many> {
    // The first round makes the rows.
    one_by_one(client, 1).await?;
    let alone = one_by_one(client, ROUNDS).await?;
    let together = at_once(client).await?;
    #[allow(clippy::cast_precision_loss)]
    let pairs = (TASKS * ROUNDS) as f64;
    Ok(Many { alone, together, pairs })
}

async fn one_by_one(client: &Client, rounds: usize) -> Result<f64> {
    let started = Instant::now();
    for n in 0..TASKS * rounds {
        released(client.lock(&format!("many-{}", n % TASKS)).acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn at_once(client: &Client) -> Result<f64> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let lease = client.lock(&format!("many-{n}")).acquire().await;
                    released(lease.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(started.elapsed().as_secs_f64())
}
