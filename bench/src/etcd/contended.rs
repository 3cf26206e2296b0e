//! Many that want one lock: how often it changes hands beside the lock service's, and how many
//! requests each turn costs, with few and with many waiters.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Client;
use leasehold::etcd::raw::Raw;
use leasehold_testkit::server::etcd::Etcd;

use super::{client, raw, released};
use crate::figures::Figure;
use crate::stats::median;
use crate::{Result, sys};

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
    let one: Vec<Client> = clients.iter().take(1).cycle().take(CLIENTS).cloned().collect();
    let (mut rates, mut works, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let theirs = service_round(server, &services).await?;
        let ours = our_round(server, &clients).await?;
        rates.push(ours.rate / theirs.rate);
        works.push(ours.work / theirs.work);
        alone.push(our_round(server, &one).await?.rate / theirs.rate);
    }
    let few = requests(server, clients.get(..FEW).unwrap_or_default(), "few").await?;
    while clients.len() < MANY {
        clients.push(client(server).await?);
    }
    let many = requests(server, &clients, "many").await?;
    Ok(vec![
        Figure::at_least(
            "turns of ours / the lock service's, 64 processes that wait",
            median(&rates),
            3.0,
        ),
        Figure::told("  processor time a turn, servers and clients", median(&works)).unit("x"),
        Figure::told("  turns of ours as 64 tasks of one process", median(&alone)).unit("x"),
        Figure::told("requests a contended acquisition and its release, 4 waiters", few),
        Figure::at_most("the same of 256 waiters / of 4", many / few, 1.1),
    ])
}

/// What was seen of a round.
struct Round {
    /// Turns a second.
    rate: f64,
    /// What the server and the clients have worked for a turn, in seconds.
    work: f64,
}

/// Lets `turn` be taken by all at once, again and again.
async fn round<F>(server: &Etcd, turns: Vec<impl Fn() -> F + Send + 'static>) -> Result<Round>
where
    F: Future<Output = Result<(), String>> + Send,
{
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let before = worked(server)?;
    let mut tasks = Vec::new();
    for turn in turns {
        let (over, count) = (Arc::clone(&over), Arc::clone(&count));
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                turn().await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), String>(())
        }));
    }
    tokio::time::sleep(ROUND).await;
    let (done, after) = (count.load(Ordering::Relaxed), worked(server)?);
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    if done == 0 {
        return Err("nobody has had a turn".into());
    }
    #[allow(clippy::cast_precision_loss)]
    let done = done as f64;
    Ok(Round { rate: done / ROUND.as_secs_f64(), work: (after - before) / done })
}

async fn our_round(server: &Etcd, clients: &[Client]) -> Result<Round> {
    let turn = |client: &Client| {
        let client = client.clone();
        move || {
            let client = client.clone();
            async move {
                let lease = client.lock("turns").acquire().await.map_err(|e| e.to_string())?;
                released(lease).await.map_err(|e| e.to_string())
            }
        }
    };
    round(server, clients.iter().map(turn).collect()).await
}

async fn service_round(server: &Etcd, services: &[(Arc<Raw>, i64)]) -> Result<Round> {
    let turn = |(raw, lease): &(Arc<Raw>, i64)| {
        let (raw, lease) = (Arc::clone(raw), *lease);
        move || {
            let raw = Arc::clone(&raw);
            async move {
                let key = raw.server_lock("service-turns", lease).await;
                let key = key.map_err(|e| e.to_string())?;
                raw.server_unlock(key).await.map_err(|e| e.to_string())
            }
        }
    };
    round(server, services.iter().map(turn).collect()).await
}

/// What the server and this process have worked so far, in seconds.
fn worked(server: &Etcd) -> Result<f64> {
    Ok(counted(server, "process_cpu_seconds_total", "")? + sys::cpu_seconds()?)
}

/// What it costs each of these clients to wait for a lock, to get it and to release it.
async fn requests(server: &Etcd, clients: &[Client], name: &str) -> Result<f64> {
    let held = client(server).await?.lock(name).acquire().await?;
    let before = received(server)?;
    let mut waiting = Vec::new();
    for client in clients {
        let (client, name) = (client.clone(), name.to_owned());
        waiting.push(tokio::spawn(async move {
            match client.lock(&name).acquire().await {
                Ok(lease) => released(lease).await.map_err(|e| e.to_string()),
                Err(error) => Err(error.to_string()),
            }
        }));
    }
    #[allow(clippy::cast_precision_loss)]
    let all = clients.len() as f64;
    while counted(server, "etcd_debugging_mvcc_watcher_total", "")? < all {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    released(held).await?;
    for waiter in waiting {
        waiter.await??;
    }
    Ok((received(server)? - before) / all)
}

/// How many messages of clients the server has received, but for those that keep leases alive: these
/// are a few a second and process, whatever it does.
fn received(server: &Etcd) -> Result<f64> {
    let name = "grpc_server_msg_received_total";
    Ok(counted(server, name, "")? - counted(server, name, "LeaseKeepAlive")?)
}

/// What the server counts; on a busy machine it may have to be asked again.
fn counted(server: &Etcd, name: &str, label: &str) -> Result<f64> {
    let mut asked = (0..10).map(|_| server.metric_of(name, label));
    let count = asked.find_map(std::convert::identity);
    count.ok_or_else(|| format!("the server does not count {name}").into())
}
