//! From hand to hand: 64 claims of one process that wait in the database, beside the raw steps and
//! beside loops that look.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::core::{
    Admission, Claim, ClaimId, ClaimRef, Cursor, Hint, Holder, HolderId, Life, Mode, Place,
    ResourceName, Store, Token,
};
use leasehold::postgres::{PostgresConfig, PostgresStore};
use leasehold_testkit::server::postgres::Postgres;
use tokio::sync::Mutex;

use super::raw::{Raw, connect};
use super::{client, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::{median, quantile};

const WAITERS: usize = 64;
const ROUNDS: usize = 3;
/// How often a loop that looks does so.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOKERS: usize = 8;
const LOOK_FOR: Duration = Duration::from_secs(3);

pub(crate) async fn run(server: &Postgres) -> Result<Vec<Figure>> {
    let mut ratios = Vec::new();
    let mut handovers = Vec::new();
    let mut most = 0.0_f64;
    for round in 0..ROUNDS {
        let name = format!("handover-{round}");
        let raw_before = raw_steps(server).await?;
        let (mine, connections) = our_round(server, &name).await?;
        let raw_after = raw_steps(server).await?;
        ratios.push(mine / f64::midpoint(raw_before, raw_after));
        handovers.push(mine);
        most = most.max(connections);
    }
    let ours_each = median(&handovers);
    let (mine, shares) = our_shares(server).await?;
    let mut figures = vec![
        Figure::at_most(
            "hand-over, 64 waiters / round trip + commit + message",
            median(&ratios),
            1.8,
        ),
        Figure::at_most("connections of a process with 64 waiters", most, 5.0).unit(""),
        Figure::at_most("most even share of 8 that contend / least", shares, 1.2),
    ];
    for (what, advisory) in [("rows", false), ("advisory locks", true)] {
        let (each, uneven) = looking(server, advisory).await?;
        figures.push(Figure::at_most(
            format!("our hand-over / of {LOOKERS} that look at {what} every 50 ms"),
            ours_each / each,
            1.0,
        ));
        figures.push(Figure::at_most(
            format!("our unevenness / that of those that look at {what}"),
            shares / uneven,
            1.0,
        ));
    }
    figures.push(Figure::told("grants of 8 clients that contend, a second", mine));
    Ok(figures)
}

/// One round trip with a durable commit, and one message to another connection: in seconds.
async fn raw_steps(server: &Postgres) -> Result<f64> {
    let raw = Raw::open(server, "handover").await?;
    let (listener, mut words) = connect(server).await?;
    listener.batch_execute("LISTEN raw").await?;
    let mut times = Vec::new();
    for _ in 0..25 {
        raw.take().await?;
        let started = Instant::now();
        raw.free().await?;
        let (said, heard) = tokio::join!(raw.client.batch_execute("NOTIFY raw"), async {
            (words.recv().await, started.elapsed().as_secs_f64())
        });
        said?;
        heard.0.ok_or("no word")?;
        times.push(heard.1);
    }
    Ok(median(&times))
}

fn claim(name: &str, number: usize) -> Result<Claim> {
    let bits = u128::try_from(number)? << 64 | u128::from(std::process::id());
    Ok(Claim {
        id: ClaimId::from_bits(bits),
        resource: ResourceName::new(name)?,
        holder: Holder::new(HolderId::from_bits(bits), "bench"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(60),
        life: Life::Term,
        place: Place::Term(Duration::from_secs(60)),
        after_loss: Duration::ZERO,
    })
}

/// All wait in turn for one lock; the time from grant to grant, and the connections it took. (Tasks
/// of one client would take turns within it, and only one of them wait in the database.)
async fn our_round(server: &Postgres, name: &str) -> Result<(f64, f64)> {
    let before = connections(server)?;
    let config = PostgresConfig::new("127.0.0.1", server.port(), "postgres");
    let store = Arc::new(PostgresStore::connect(config).await?);
    let held = claim(name, 1_000)?;
    let Admission::Granted(grant) = store.enter(&held).await? else {
        return Err("a free lock was not granted".into());
    };
    let grants: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let (store, grants) = (Arc::clone(&store), Arc::clone(&grants));
        let claim = claim(name, number)?;
        tasks.push(tokio::spawn(async move {
            let token = until_granted(&store, &claim).await.map_err(|e| e.to_string())?;
            grants.lock().await.push(Instant::now());
            let named = ClaimRef { token: Some(token), ..claim.to_ref() };
            store.leave(&named).await.map(drop).map_err(|e| e.to_string())
        }));
    }
    let queued = format!("SELECT waiting FROM leasehold_resource WHERE name = '{name}'");
    while server.sql(&queued) != WAITERS.to_string() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = connections(server)? - before;
    store.leave(&ClaimRef { token: Some(grant.token), ..held.to_ref() }).await?;
    for task in tasks {
        task.await??;
    }
    store.close().await;
    let grants = grants.lock().await;
    let gaps: Vec<f64> = grants.windows(2).map(|w| (w[1] - w[0]).as_secs_f64()).collect();
    Ok((median(&gaps), took))
}

fn connections(server: &Postgres) -> Result<f64> {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold'";
    Ok(server.sql(sql).parse()?)
}

/// Enters, and waits for word.
async fn until_granted(store: &PostgresStore, claim: &Claim) -> Result<Token> {
    let mut since = Cursor::default();
    loop {
        if let Admission::Granted(grant) = store.enter(claim).await? {
            return Ok(grant.token);
        }
        let long = Duration::from_secs(30);
        match store.changed(&claim.resource, Some(claim.id), since, long).await? {
            Hint::Granted(pushed) => return Ok(pushed.grant.token),
            Hint::Moved(cursor) => since = cursor,
        }
    }
}

/// Clients with connections of their own that contend for one lock without a pause: grants a
/// second, and the most a client got beside the least.
async fn our_shares(server: &Postgres) -> Result<(f64, f64)> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..LOOKERS {
        let (client, stop) = (client(server).await?, Arc::clone(&stop));
        tasks.push(tokio::spawn(async move {
            let mut got = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                let lease = client.lock("shares").acquire().await.map_err(|e| e.to_string())?;
                got += 1;
                released(lease).await.map_err(|e| e.to_string())?;
            }
            Ok::<u32, String>(got)
        }));
    }
    tokio::time::sleep(LOOK_FOR).await;
    stop.store(true, Ordering::SeqCst);
    let mut got = Vec::new();
    for task in tasks {
        got.push(f64::from(task.await??));
    }
    let all: f64 = got.iter().sum();
    Ok((all / LOOK_FOR.as_secs_f64(), unevenness(&got)))
}

/// Clients that try, and look again after a while, as a lock table or advisory locks are mostly
/// used: seconds from a release to the next grant, and the most beside the least.
async fn looking(server: &Postgres, advisory: bool) -> Result<(f64, f64)> {
    let stop = Arc::new(AtomicBool::new(false));
    let freed: Arc<Mutex<Option<Instant>>> = Arc::default();
    let gaps: Arc<Mutex<Vec<f64>>> = Arc::default();
    let mut tasks = Vec::new();
    for n in 0..LOOKERS {
        let raw = Raw::open(server, "looking").await?;
        let (stop, freed, gaps) = (Arc::clone(&stop), Arc::clone(&freed), Arc::clone(&gaps));
        tasks.push(tokio::spawn(async move {
            let mut got = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                if !attempt(&raw, advisory).await.map_err(|e| e.to_string())? {
                    let jitter = Duration::from_millis(u64::try_from(n).unwrap_or(0));
                    tokio::time::sleep(LOOK_EVERY + jitter).await;
                    continue;
                }
                got += 1;
                if let Some(at) = freed.lock().await.take() {
                    gaps.lock().await.push(at.elapsed().as_secs_f64());
                }
                // Somebody else is to have it next.
                *freed.lock().await = Some(Instant::now());
                release(&raw, advisory).await.map_err(|e| e.to_string())?;
                tokio::time::sleep(LOOK_EVERY).await;
            }
            Ok::<u32, String>(got)
        }));
    }
    tokio::time::sleep(LOOK_FOR).await;
    stop.store(true, Ordering::SeqCst);
    let mut got = Vec::new();
    for task in tasks {
        got.push(f64::from(task.await??));
    }
    let gaps = gaps.lock().await;
    Ok((quantile(&gaps, 0.5), unevenness(&got)))
}

async fn attempt(raw: &Raw, advisory: bool) -> Result<bool> {
    if !advisory {
        return raw.take().await;
    }
    let row = raw.client.query_one("SELECT pg_try_advisory_lock(7)", &[]).await?;
    Ok(row.try_get(0)?)
}

async fn release(raw: &Raw, advisory: bool) -> Result<()> {
    if !advisory {
        return raw.free().await;
    }
    raw.client.execute("SELECT pg_advisory_unlock(7)", &[]).await?;
    Ok(())
}

fn unevenness(got: &[f64]) -> f64 {
    let most = got.iter().copied().fold(0.0, f64::max);
    let least = got.iter().copied().fold(f64::INFINITY, f64::min);
    most / least.max(1.0)
}
