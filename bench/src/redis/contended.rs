//! Many that want one lock: how long a hand-over takes, how much of the time the lock is held, who
//! gets it how often, and how many commands each turn costs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::server::redis::Redis;

use super::{client, peer, released};
use crate::Result;
use crate::figures::Figure;
use crate::stats::{median, quantile};

/// Each has connections of its own, as a process has.
const CLIENTS: usize = 8;
const ROUND: Duration = Duration::from_secs(4);
const HOLD: Duration = Duration::from_millis(2);
/// What a client itself sends, apart from what its scripts do.
const SENT: [&str; 6] = ["evalsha", "eval", "script|load", "subscribe", "unsubscribe", "ping"];

/// One turn with the lock.
#[derive(Clone, Copy)]
struct Turn {
    task: usize,
    asked: Instant,
    acquired: Instant,
    releasing: Instant,
}

/// What a round showed.
struct Round {
    turns: Vec<Turn>,
    pings: Vec<f64>,
    commands: f64,
}

pub(crate) async fn run(server: &Redis) -> Result<Vec<Figure>> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(server).await?);
    }
    let mut figures = Vec::new();
    for (waiters, busy) in [(2, false), (64, true)] {
        let round = contend(server, &clients, waiters, HOLD).await?;
        figures.extend(hand_overs(&round, waiters));
        if busy {
            figures.extend(shares(&round, waiters));
        }
    }
    let few = contend(server, &clients, 4, Duration::from_millis(1)).await?;
    let many = contend(server, &clients, 256, Duration::from_millis(1)).await?;
    for (waiters, round) in [(4, few), (256, many)] {
        let each = round.commands / round.turns.len() as f64;
        let what = format!("commands a contended turn, {waiters} waiters, heartbeats too");
        figures.push(Figure::at_most(what, each, 2.2).unit(""));
    }
    Ok(figures)
}

fn hand_overs(round: &Round, waiters: usize) -> Vec<Figure> {
    let mut handed = Vec::new();
    for pair in round.turns.windows(2) {
        let [before, after] = [pair[0], pair[1]];
        if before.task != after.task && after.asked < before.releasing {
            handed.push(after.acquired.saturating_duration_since(before.releasing).as_secs_f64());
        }
    }
    let ping = |share| quantile(&round.pings, share);
    vec![
        Figure::at_most(
            format!("hand-over / PING, {waiters} waiters, median"),
            median(&handed) / ping(0.5),
            1.5,
        ),
        Figure::at_most(
            format!("hand-over / PING, {waiters} waiters, 99th of 100"),
            quantile(&handed, 0.99) / ping(0.99),
            4.0,
        ),
    ]
}

fn shares(round: &Round, waiters: usize) -> Vec<Figure> {
    let (Some(first), Some(last)) = (round.turns.first(), round.turns.last()) else {
        return Vec::new();
    };
    let span = last.releasing.duration_since(first.acquired).as_secs_f64();
    let held: f64 =
        round.turns.iter().map(|t| t.releasing.duration_since(t.acquired).as_secs_f64()).sum();
    let mut each = vec![0_u32; waiters];
    for turn in &round.turns {
        each[turn.task] += 1;
    }
    let most = each.iter().max().copied().unwrap_or_default();
    let least = each.iter().min().copied().unwrap_or_default();
    vec![
        Figure::at_least(format!("share of time held, {waiters} waiters"), held / span, 0.95)
            .unit(""),
        Figure::at_most(
            format!("turns a waiter, most / least, {waiters} waiters"),
            f64::from(most) / f64::from(least),
            1.1,
        ),
    ]
}

async fn contend(
    server: &Redis,
    clients: &[Client],
    waiters: usize,
    hold: Duration,
) -> Result<Round> {
    let over = Arc::new(AtomicBool::new(false));
    let turns: Arc<Mutex<Vec<Turn>>> = Arc::default();
    let mut tasks = Vec::new();
    for task in 0..waiters {
        let client = clients[task % clients.len()].clone();
        let (over, turns) = (Arc::clone(&over), Arc::clone(&turns));
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let lease = client.lock("turns").acquire().await.map_err(|e| e.to_string())?;
                let acquired = Instant::now();
                tokio::time::sleep(hold).await;
                let turn = Turn { task, asked, acquired, releasing: Instant::now() };
                turns.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
                released(lease).await.map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        }));
    }
    // All have come once.
    tokio::time::sleep(ROUND / 4).await;
    let mut peer = peer(server).await?;
    server.cli(&["CONFIG", "RESETSTAT"]);
    turns.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let mut pings = Vec::new();
    let end = Instant::now() + ROUND;
    while Instant::now() < end {
        let started = Instant::now();
        let _: String = ::redis::cmd("PING").query_async(&mut peer).await?;
        pings.push(started.elapsed().as_secs_f64());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let turned = turns.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let commands = commands(server) - pings.len() as f64;
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    Ok(Round { turns: turned, pings, commands })
}

/// How many commands clients have sent.
fn commands(server: &Redis) -> f64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let of = |name: &str| -> Option<f64> {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")))?;
        line.split(['=', ',']).nth(1)?.parse().ok()
    };
    SENT.iter().filter_map(|name| of(name)).sum()
}
