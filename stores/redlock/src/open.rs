//! Reaching the members, and looking at them again after each disturbance.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use leasehold_core::{Backoff, Clock, Error, ErrorKind, Result};
use leasehold_net::{BootClock, Io};
use leasehold_redis::RedisStore;
use leasehold_redis::member;
use tokio::sync::mpsc;

use crate::config::RedlockConfig;
use crate::core::Core;
use crate::member::Member;
use crate::store::RedlockStore;

const CONNECTING: &str = "connect";
/// How much longer than for a majority those members are waited for that have said nothing yet.
const GRACE: Duration = Duration::from_secs(3);
/// The waits between attempts to reach and to look at a member.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

pub(crate) fn boxed<T>(
    future: impl Future<Output = T> + Send + 'static,
) -> Pin<Box<dyn Future<Output = T> + Send>> {
    Box::pin(future)
}

pub(crate) async fn connect(config: RedlockConfig) -> Result<RedlockStore> {
    config.check()?;
    let url = config.url();
    let named = |error: Error| error.while_doing(CONNECTING).at(url.as_str());
    if config.members.len().is_multiple_of(2) {
        tracing::warn!(
            target: "leasehold", url,
            "an even number of members: one fewer would survive as many failures"
        );
    }
    let io = Io::start("leasehold-redlock").map_err(named)?;
    let members = config.members.iter().map(|host| {
        let member = Member::new(host.to_string(), config.member(host), config.max_term);
        Arc::new(member)
    });
    let core = Arc::new(Core::new(config.clone(), members.collect(), io));
    let (tell, told) = mpsc::unbounded_channel();
    for at in core.all() {
        let tend = tend(Arc::downgrade(&core), Arc::clone(&core.members[at]), at, tell.clone());
        core.io.back().spawn(tend);
    }
    let reaching = Arc::clone(&core);
    let reached = core.io.on_back(CONNECTING, async move { reach(&reaching, told).await }).await;
    match reached.and_then(|reached| reached) {
        Ok(()) => Ok(RedlockStore::new(core)),
        Err(error) => {
            core.has_closed();
            Err(named(error))
        }
    }
}

/// Waits for a majority, and a little longer for the others.
async fn reach(
    core: &Arc<Core>,
    mut told: mpsc::UnboundedReceiver<(usize, Result<()>)>,
) -> Result<()> {
    let within = core.config.connect_within;
    let end = tokio::time::Instant::now() + within;
    let mut grace = None;
    let mut last: Vec<(usize, Error)> = Vec::new();
    let mut reached = 0;
    while reached < core.members.len() {
        let until = grace.unwrap_or(end);
        let (at, how) = match tokio::time::timeout_at(until, told.recv()).await {
            Ok(Some(told)) => told,
            Ok(None) | Err(_) => break,
        };
        last.retain(|(other, _)| *other != at);
        match how {
            Ok(()) => reached += 1,
            Err(error) if error.kind().is_transient() => last.push((at, error)),
            Err(error) => return Err(error),
        }
        if reached >= core.majority() && reached + last.len() >= core.members.len() {
            break;
        }
        if reached >= core.majority() && grace.is_none() {
            grace = Some(end.min(tokio::time::Instant::now() + GRACE));
        }
    }
    if reached < core.majority() {
        return Err(unreached(core, &last, reached));
    }
    for member in core.members.iter().filter(|member| !member.is_reached()) {
        tracing::warn!(
            target: "leasehold", member = member.name, "a member is not reached; going on without"
        );
    }
    Ok(())
}

fn unreached(core: &Core, last: &[(usize, Error)], reached: usize) -> Error {
    let missing = core.members.iter().enumerate().filter(|(_, member)| !member.is_reached());
    let why: Vec<String> = missing
        .map(|(at, member)| match last.iter().find(|(other, _)| *other == at) {
            Some((_, error)) => format!("{}: {error}", member.name),
            None => format!("{}: no answer", member.name),
        })
        .collect();
    let (want, of) = (core.majority(), core.members.len());
    let detail = format!("{reached} of {of} members are reached, want {want}: {}", why.join("; "));
    Error::new(ErrorKind::Unreachable, CONNECTING, detail)
}

/// Reaches a member, and looks at it after each disturbance, for as long as the store lives.
async fn tend(
    core: Weak<Core>,
    member: Arc<Member>,
    at: usize,
    tell: mpsc::UnboundedSender<(usize, Result<()>)>,
) {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, at as u64 + 1);
    let store = loop {
        let Some(core) = core.upgrade().filter(|core| !core.is_closed()) else { return };
        let mut config = member.config.clone();
        config.connect_within = Duration::ZERO;
        // The front of its connections is then that of the caller.
        let connect = || RedisStore::connect(config.clone());
        let io = core.io.clone();
        drop(core);
        let connected = match io.on_front(CONNECTING, connect()).await {
            Err(error) if error.kind() == ErrorKind::Closed => connect().await,
            connected => connected.and_then(|connected| connected),
        };
        drop(io);
        match connected.map_err(|error| refusal(&member, error)) {
            Ok(store) => break Arc::new(store),
            Err(error) => {
                member.refused(error.clone());
                drop(tell.send((at, Err(error))));
            }
        }
        tokio::time::sleep(backoff.next_wait()).await;
    };
    backoff.reset();
    let mut is_told = false;
    loop {
        let since = member::disturbances(&store);
        match look(&core, &member, &store, since).await {
            Ok(()) => {
                backoff.reset();
                if !is_told {
                    is_told = true;
                    drop(tell.send((at, Ok(()))));
                }
                let Some(core) = core.upgrade().filter(|core| !core.is_closed()) else { return };
                core.has_changed();
                let closed = core.closed.listen();
                drop(core);
                tokio::select! {
                    _ = member::disturbed(&store, since) => {}
                    () = closed => return,
                }
            }
            Err(error) => {
                member.refused(error.clone());
                if !is_told {
                    drop(tell.send((at, Err(error))));
                }
                tokio::time::sleep(backoff.next_wait()).await;
            }
        }
        if core.upgrade().is_none_or(|core| core.is_closed()) {
            return;
        }
    }
}

/// Sees what the member is, and whether it is one that can be counted beside the others.
async fn look(
    core: &Weak<Core>,
    member: &Arc<Member>,
    store: &Arc<RedisStore>,
    since: leasehold_core::Cursor,
) -> Result<()> {
    let vetted = member::vet(store).await?;
    let bad = |detail: String| Error::new(ErrorKind::Config, CONNECTING, detail);
    let layout = member::layout_mark(store);
    if let Some(mark) = &vetted.marked
        && mark != layout
    {
        let detail = format!("the member {} was used with the other layout", member.name);
        return Err(bad(detail).advise("let all clients name one layout"));
    }
    // First its own is noted: of two that look at once, one sees the other.
    let run_id = vetted.run_id.clone();
    member.judge(vetted, since, BootClock.now());
    if let (Some(core), Some(run_id)) = (core.upgrade(), &run_id) {
        let others = core.members.iter().filter(|other| !Arc::ptr_eq(other, member));
        for other in others {
            if other.run_id().as_ref() == Some(run_id) {
                let detail = format!("{} and {} are one server", other.name, member.name);
                return Err(bad(detail).advise("a majority has to be of different servers"));
            }
        }
    }
    member.reached(Arc::clone(store));
    Ok(())
}

/// Names the member; a replica is not waited for.
fn refusal(member: &Member, error: Error) -> Error {
    let text = error.to_string();
    if text.contains("replica") {
        let detail = format!("the member {} is a replica", member.name);
        return Error::new(ErrorKind::Config, CONNECTING, detail)
            .advise("name independent masters; for one with replicas write `redis+sentinel`");
    }
    let detail = format!("the member {}: {error}", member.name);
    Error::new(error.kind(), CONNECTING, detail)
}
