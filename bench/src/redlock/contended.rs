//! How many acquisitions succeed where several want one lock: split votes cost time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::redis::Redis;
use rslock::LockManager;

use super::{client, released, rslock};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const CONTENDERS: [usize; 5] = [2, 4, 8, 16, 32];
const ROUND: Duration = Duration::from_millis(700);
const ROUNDS: usize = 5;
const HOLD: Duration = Duration::from_millis(1);
const TTL: Duration = Duration::from_secs(10);

pub(crate) async fn run(servers: &[Redis]) -> Result<Vec<Figure>> {
    let most = CONTENDERS.into_iter().max().unwrap_or_default();
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..most {
        ours.push(client(servers).await?);
        theirs.push(Arc::new(rslock(servers)));
    }
    let members: Vec<String> = servers.iter().map(|s| s.addr().to_string()).collect();
    let mut go = Foreign::redlock(&members.join(","), &[]);
    let mut figures = Vec::new();
    for contenders in CONTENDERS {
        let (mut beside_rslock, mut beside_redsync) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let name = format!("{contenders}-{round}");
            let mine = ours_in_a_round(&ours[..contenders], &name).await?;
            let peers = rslock_in_a_round(&theirs[..contenders], &name).await?;
            let gos = redsync_in_a_round(&mut go, contenders, &name)?;
            beside_rslock.push(mine / peers.max(1.0));
            beside_redsync.push(mine / gos.max(1.0));
        }
        let what = |peer| format!("acquisitions of {contenders} contenders / {peer}");
        figures.push(Figure::at_least(what("rslock's"), median(&beside_rslock), 1.0));
        figures.push(Figure::at_least(what("redsync's"), median(&beside_redsync), 1.0));
    }
    Ok(figures)
}

async fn ours_in_a_round(clients: &[Client], name: &str) -> Result<f64> {
    let over = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = clients
        .iter()
        .map(|client| {
            let (client, name) = (client.clone(), name.to_owned());
            let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let lease = client.lock(&name).ttl(TTL).acquire().await;
                    let lease = lease.map_err(|error| error.to_string())?;
                    tokio::time::sleep(HOLD).await;
                    turns.fetch_add(1, Ordering::Relaxed);
                    released(lease).await.map_err(|error| error.to_string())?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    let rate = rate(&turns, &over).await;
    for task in tasks {
        task.await??;
    }
    Ok(rate)
}

async fn rslock_in_a_round(managers: &[Arc<LockManager>], name: &str) -> Result<f64> {
    let over = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = managers
        .iter()
        .map(|manager| {
            let (manager, name) = (Arc::clone(manager), format!("rslock:{name}"));
            let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    // It gives up after a few tries; then it is asked again.
                    let Ok(lock) = manager.lock(name.as_bytes(), TTL).await else { continue };
                    tokio::time::sleep(HOLD).await;
                    turns.fetch_add(1, Ordering::Relaxed);
                    manager.unlock(&lock).await;
                }
            })
        })
        .collect();
    let rate = rate(&turns, &over).await;
    for task in tasks {
        task.await?;
    }
    Ok(rate)
}

fn redsync_in_a_round(go: &mut Foreign, contenders: usize, name: &str) -> Result<f64> {
    let (term, round, hold) = (TTL.as_millis(), ROUND.as_millis(), HOLD.as_millis());
    let asked = format!("contend redsync:{name} {term} {contenders} {round} {hold}");
    let told = go.call("A", &asked).text;
    let words: Vec<&str> = told.split_whitespace().collect();
    match words[..] {
        ["turns", turns, "in", nanos] => Ok(turns.parse::<f64>()? / nanos.parse::<f64>()? * 1e9),
        _ => Err(format!("redsync: {told}").into()),
    }
}

/// How many turns there were in a second of the round.
async fn rate(turns: &AtomicU64, over: &AtomicBool) -> f64 {
    let started = Instant::now();
    tokio::time::sleep(ROUND).await;
    let counted = turns.load(Ordering::Relaxed);
    let spent = started.elapsed().as_secs_f64();
    over.store(true, Ordering::Relaxed);
    #[allow(clippy::cast_precision_loss)]
    let counted = counted as f64;
    counted / spent
}
