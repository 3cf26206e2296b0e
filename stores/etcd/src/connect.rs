//! The first word with a cluster.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, Error, ErrorKind, Result};
use tokio::time::{Instant, sleep};

use crate::error::Failure;
use crate::keys::Layout;
use crate::leases::{Leases, Use};
use crate::proto::{STATUS, StatusRequest, StatusResponse};
use crate::rpc::Rpc;
use crate::txn;

/// The first version with all that is needed.
const VERSION_MIN: (u32, u32) = (3, 4);

/// What was learnt on the way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached {
    /// The shortest lease that the cluster gives, in seconds.
    pub(crate) ttl_min: u64,
}

/// Tries until it is reached, or says something that another try will not change.
pub(crate) async fn reach(
    rpc: &Rpc,
    layout: &Layout,
    leases: &Arc<Leases>,
    within: Duration,
    url: &str,
) -> Result<Reached> {
    let end = Instant::now() + within;
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1), 0x5eed);
    let mut last: Option<Error> = None;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let tried = match tokio::time::timeout(left, once(rpc, layout, leases, url)).await {
            Ok(tried) => tried,
            // What was said before tells more.
            Err(_) => Err(last.take().unwrap_or_else(|| Failure::late().error(url))),
        };
        match tried {
            Ok(reached) => return Ok(reached),
            Err(error) if !error.kind().is_transient() => {
                return Err(error.while_doing("open the store"));
            }
            Err(error) if Instant::now() >= end => {
                let error = error.while_doing("open the store");
                return Err(match error.advice() {
                    Some(_) => error,
                    None => error.advise(
                        "see that the addresses are those of etcd's clients, and whether it speaks \
                         TLS: then it is etcds://",
                    ),
                });
            }
            Err(error) => {
                last = Some(error);
                sleep(backoff.next_wait().min(end.saturating_duration_since(Instant::now()))).await;
            }
        }
    }
}

async fn once(rpc: &Rpc, layout: &Layout, leases: &Arc<Leases>, url: &str) -> Result<Reached> {
    let failed = |failure: Failure| failure.error(url);
    let status: StatusResponse = rpc.call(STATUS, StatusRequest {}).await.map_err(failed)?;
    check_version(&status.version, url)?;
    // Never taken, but whether this user may do it is asked first.
    let probe = |key: String| txn::put(format!("{}{key}", layout.prefix).into_bytes(), vec![], 0);
    let never = txn::created_at(format!("{}.leasehold/", layout.prefix).into_bytes(), -1);
    let puts = vec![probe(".leasehold/names/".into()), probe("leasehold-probe/".into())];
    txn::run(rpc, vec![never], puts, vec![]).await.map_err(failed)?;
    // What one second becomes is the shortest there is.
    let short = leases.grant(Use::Short, 1).await?;
    Ok(Reached { ttl_min: short.belief.ttl.as_secs() })
}

fn check_version(text: &str, url: &str) -> Result<()> {
    let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    match version {
        Some(version) if version >= VERSION_MIN => Ok(()),
        _ => {
            let text = leasehold_core::shown(text, 20);
            let detail = format!("the server's version is {text}: want 3.4 or newer");
            Err(Error::new(ErrorKind::Version, "open the store", detail).at(url))
        }
    }
}
