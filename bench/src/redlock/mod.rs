//! Redlock over five servers of this run's own: beside raw round trips, `rslock` and redsync.

mod contended;
mod uncontended;

use leasehold::{Client, Connect};
use leasehold_testkit::server::redis::{Options, Redis};
use rslock::LockManager;

use crate::Result;
use crate::figures::Figure;
use crate::lease::released;

const MEMBERS: usize = 5;

pub(crate) fn run() -> Result<Vec<Figure>> {
    let args: Vec<String> = ["--appendonly", "yes"].map(str::to_owned).into();
    let start = || Redis::with(Options { args: args.clone(), ..Options::default() });
    let servers: Vec<Redis> = (0..MEMBERS).map(|_| start()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut figures = runtime.block_on(uncontended::run(&servers))?;
    figures.extend(runtime.block_on(contended::run(&servers))?);
    Ok(figures)
}

/// A client with connections of its own, as another process would have.
///
/// Members that keep every write count from their first moment on: while it opens they do, and
/// then no longer, for the disk is not measured.
async fn client(servers: &[Redis]) -> Result<Client> {
    let members: Vec<String> = servers.iter().map(|s| s.addr().to_string()).collect();
    let keep = |when: &str| {
        for server in servers {
            server.cli(&["CONFIG", "SET", "appendfsync", when]);
        }
    };
    keep("always");
    let client = Connect::to(format!("redlock://{}", members.join(","))).open().await?;
    keep("no");
    Ok(client)
}

fn rslock(servers: &[Redis]) -> LockManager {
    LockManager::new(servers.iter().map(|s| format!("redis://{}", s.addr())).collect::<Vec<_>>())
}
