//! Many that want one lock: how often it changes hands beside the lock service's, and how many
//! requests each turn costs, with few and with many waiters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Client;
use leasehold::etcd::raw::Raw;
use leasehold_testkit::server::etcd::Etcd;

use super::{client, raw, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const CLIENTS: usize = 64;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(3);
const FEW: usize = 4;
const MANY: usize = 256;

pub(crate) async fn run(server: &Etcd) -> Result<Vec<Figure>> {
    let mut clients = Vec::new();
    let mut services = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(server).await?);
        let raw = Arc::new(raw(server)?);
        let lease = raw.grant(600).await?;
        services.push((raw, lease));
    }
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let theirs = service_round(&services).await?;
        ratios.push(our_round(&clients).await? / theirs);
    }
    let few = requests(server, clients.get(..FEW).unwrap_or_default(), FEW, "few").await?;
    let many = requests(server, &clients, MANY, "many").await?;
    Ok(vec![
        Figure::at_least(
            "turns of ours / the lock service's, 64 processes that wait",
            median(&ratios),
            3.0,
        ),
        Figure::told("requests a contended acquisition and its release, 4 waiters", few),
        Figure::at_most("the same of 256 waiters / of 4", many / few, 1.1),
    ])
}

/// Turns a second.
async fn our_round(clients: &[Client]) -> Result<f64> {
    let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for client in clients {
        let (client, over, turns) = (client.clone(), Arc::clone(&over), Arc::clone(&turns));
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let lease = client.lock("turns").acquire().await.map_err(|e| e.to_string())?;
                released(lease).await.map_err(|e| e.to_string())?;
                turns.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), String>(())
        }));
    }
    tokio::time::sleep(ROUND).await;
    let count = turns.load(Ordering::Relaxed);
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    rate(count)
}

async fn service_round(services: &[(Arc<Raw>, i64)]) -> Result<f64> {
    let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for (raw, lease) in services {
        let (raw, lease) = (Arc::clone(raw), *lease);
        let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let key = raw.server_lock("service-turns", lease).await;
                raw.server_unlock(key.map_err(|e| e.to_string())?)
                    .await
                    .map_err(|e| e.to_string())?;
                turns.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), String>(())
        }));
    }
    tokio::time::sleep(ROUND).await;
    let count = turns.load(Ordering::Relaxed);
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    rate(count)
}

#[allow(clippy::cast_precision_loss)]
fn rate(count: u64) -> Result<f64> {
    if count == 0 {
        return Err("nobody has had a turn".into());
    }
    Ok(count as f64 / ROUND.as_secs_f64())
}

async fn requests(server: &Etcd, clients: &[Client], count: usize, name: &str) -> Result<f64> {
    let held = clients.first().ok_or("no client")?.lock(name).acquire().await?;
    let before = received(server)?;
    let mut waiting = Vec::new();
    for n in 0..count {
        let (client, name) = (clients[n % clients.len()].clone(), name.to_owned());
        waiting.push(tokio::spawn(async move {
            match client.lock(&name).acquire().await {
                Ok(lease) => released(lease).await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    released(held).await?;
    for waiter in waiting {
        waiter.await??;
    }
    #[allow(clippy::cast_precision_loss)]
    Ok((received(server)? - before) / count as f64)
}

/// How many messages of clients the server has received.
fn received(server: &Etcd) -> Result<f64> {
    Ok(server.metric("grpc_server_msg_received_total").ok_or("no count")?)
}
