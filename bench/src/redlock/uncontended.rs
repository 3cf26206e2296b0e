//! Acquire and release without contention, beside the round trips that they are made of.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use leasehold::Client;
use leasehold_testkit::server::redis::Redis;
use rslock::LockManager;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{MEMBERS, client, released, rslock};
use crate::Result;
use crate::figures::Figure;
use crate::stats::median;

const BLOCKS: usize = 30;
const PAIRS: usize = 50;
const TTL: Duration = Duration::from_secs(30);
/// Taking, taking the token, and releasing.
const ROUNDS: usize = 3;

pub(crate) async fn run(servers: &[Redis]) -> Result<Vec<Figure>> {
    let ours = client(servers).await?;
    let theirs = rslock(servers);
    let mut sockets = Vec::new();
    for server in servers {
        let socket = TcpStream::connect(server.addr()).await?;
        socket.set_nodelay(true)?;
        sockets.push(socket);
    }
    let (mut floor_of, mut peer_of) = (Vec::new(), Vec::new());
    for block in 0..=BLOCKS {
        let floor = ping_block(&mut sockets).await?;
        let mine = our_block(&ours).await?;
        let peers = rslock_block(&theirs).await?;
        if block > 0 {
            floor_of.push(mine / floor);
            peer_of.push(mine / peers);
        }
    }
    let what = "acquire + release / three rounds of PINGs, a majority of answers each";
    Ok(vec![
        Figure::at_most(what, median(&floor_of), 1.3),
        Figure::told("acquire + release / rslock's, which mints no token", median(&peer_of))
            .unit("x"),
    ])
}

/// Each round is over with the slowest of a majority; the others are read before the next.
async fn ping_block(sockets: &mut [TcpStream]) -> Result<f64> {
    let mut spent = 0.0;
    for _ in 0..ROUNDS * PAIRS {
        let started = Instant::now();
        let asked = sockets.iter_mut().map(|socket| async move {
            socket.write_all(b"PING\r\n").await?;
            let mut pong = [0; 7];
            socket.read_exact(&mut pong).await?;
            Ok::<f64, std::io::Error>(started.elapsed().as_secs_f64())
        });
        let mut answered = try_join_all(asked).await?;
        answered.sort_by(f64::total_cmp);
        spent += answered[MEMBERS / 2];
    }
    Ok(spent)
}

async fn our_block(client: &Client) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        released(client.lock("one").ttl(TTL).acquire().await?).await?;
    }
    Ok(started.elapsed().as_secs_f64())
}

async fn rslock_block(manager: &LockManager) -> Result<f64> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        let lock = manager.lock(b"rslock:one", TTL).await?;
        manager.unlock(&lock).await;
    }
    Ok(started.elapsed().as_secs_f64())
}
