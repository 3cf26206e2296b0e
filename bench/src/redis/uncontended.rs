//! Acquire and release without contention, one task and many.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ::redis::Script;
use ::redis::aio::MultiplexedConnection;
use futures_util::future::try_join_all;
use leasehold::Client;
use leasehold_testkit::server::redis::Redis;
use rslock::LockManager;

use super::{client, peer, released, url};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 30;
const PAIRS: usize = 200;
const TASKS: usize = 64;
const PAIRS_A_TASK: usize = 30;
const TTL: Duration = Duration::from_secs(30);

/// The least that a lock with a token takes: what a script can do in one step.
const ACQUIRE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                       return redis.call('INCR', KEYS[2]) end return 0";
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                       return redis.call('DEL', KEYS[1]) end return 0";

struct All {
    ours: Client,
    scripts: Scripts,
    rslock: LockManager,
}

#[derive(Clone)]
struct Scripts {
    peer: MultiplexedConnection,
    acquire: Script,
    release: Script,
}

pub(crate) async fn run(server: &Redis) -> Result<Vec<Figure>> {
    let mut ping = TcpStream::connect(server.addr())?;
    ping.set_nodelay(true)?;
    let peer = peer(server).await?;
    let all = All {
        ours: client(server).await?,
        scripts: Scripts { peer, acquire: Script::new(ACQUIRE), release: Script::new(RELEASE) },
        rslock: LockManager::new(vec![url(server)]),
    };
    let mut alone = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut many = (Vec::new(), Vec::new());
    for block in 0..=BLOCKS {
        let floor = ping_block(&mut ping)?;
        let mine = our_block(&all.ours, "one", PAIRS).await?;
        let scripts = script_block(&all.scripts, "one", PAIRS).await?;
        let theirs = rslock_block(&all.rslock, "one", PAIRS).await?;
        let All { ours, scripts: plain, rslock } = &all;
        let together = [
            timed(|name| async move { our_block(ours, &name, PAIRS_A_TASK).await }).await?,
            timed(|name| async move { script_block(plain, &name, PAIRS_A_TASK).await }).await?,
            timed(|name| async move { rslock_block(rslock, &name, PAIRS_A_TASK).await }).await?,
        ];
        if block > 0 {
            alone.0.push(mine / floor);
            alone.1.push(mine / scripts);
            alone.2.push(mine / theirs);
            alone.3.push(scripts / floor);
            many.0.push(together[0] / together[1]);
            many.1.push(together[2] / together[0]);
        }
    }
    Ok(vec![
        Figure::at_most("acquire + release / two raw PINGs", median(&alone.0), 1.25),
        Figure::told("  two plain scripts of redis-rs / two raw PINGs", median(&alone.3)).unit("x"),
        Figure::at_most("acquire + release / two plain scripts of redis-rs", median(&alone.1), 1.1),
        Figure::at_most("acquire + release / rslock's", median(&alone.2), 1.0 / 0.95),
        Figure::at_most("64 tasks: acquire + release / two plain scripts", median(&many.0), 1.25),
        Figure::at_least("64 tasks: our rate / rslock's", median(&many.1), 0.95),
    ])
}

/// How long the tasks take side by side, each with a name of its own.
async fn timed<F: Future<Output = Result<f64>>>(task: impl Fn(String) -> F) -> Result<f64> {
    let started = Instant::now();
    try_join_all((0..TASKS).map(|n| task(format!("task-{n}")))).await?;
    Ok(started.elapsed().as_secs_f64())
}

fn ping_block(socket: &mut TcpStream) -> Result<f64> {
    let mut pong = [0; 7];
    let started = Instant::now();
    for _ in 0..2 * PAIRS {
        socket.write_all(b"PING\r\n")?;
        socket.read_exact(&mut pong)?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn our_block(client: &Client, name: &str, pairs: usize) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..pairs {
        released(client.lock(name).ttl(TTL).acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn script_block(scripts: &Scripts, name: &str, pairs: usize) -> Result<f64> {
    let mut peer = scripts.peer.clone();
    let (key, counter) = (format!("plain:{{{name}}}"), format!("plain-token:{{{name}}}"));
    let started = Instant::now();
    for n in 0..pairs {
        let mut acquire = scripts.acquire.key(&key);
        acquire.key(&counter).arg(n).arg(30_000);
        let token: u64 = acquire.invoke_async(&mut peer).await?;
        let released: u64 = scripts.release.key(&key).arg(n).invoke_async(&mut peer).await?;
        if token == 0 || released != 1 {
            return Err("a plain lock is taken".into());
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn rslock_block(manager: &LockManager, name: &str, pairs: usize) -> Result<f64> {
    let name = format!("rslock:{name}");
    let started = Instant::now();
    for _ in 0..pairs {
        let lock = manager.lock(name.as_bytes(), TTL).await?;
        manager.unlock(&lock).await;
    }
    Ok(started.elapsed().as_secs_f64())
}
