//! Waking by named locks of the server: each claim that waits, or has waited, keeps one of its own
//! name, and who stands behind it waits for that. A hint, no more: the rows are the truth.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, Moment, Result};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::cells::Cells;
use crate::core::Core;
use crate::error::Fail;
use crate::lit::Sql;
use crate::session::Session;

/// The most claims of a client that wait by a connection of their own; others are polled for.
const WATCHES_MAX: usize = 8;
/// For how long one statement waits for a lock, in seconds: shorter than an answer is waited for.
const WAIT_SECONDS: u64 = 3;
/// When it is looked again whether a predecessor keeps its lock by now.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How much longer than its term a claim's lock is kept without word of it.
const KEPT_BEYOND: Duration = Duration::from_secs(10);

/// The locks of a client's own claims, and those that it waits for.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Whose locks are to be kept, and until when without further word.
    wanted: HashMap<ClaimId, Moment>,
    watches: HashMap<ClaimId, Watch>,
    /// Connections that wait for nothing now.
    idle: Vec<Session>,
    closed: bool,
}

#[derive(Debug)]
struct Watch {
    predecessor: ClaimId,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Wake {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim was answered waiting, behind this one.
    pub(crate) fn waits(
        self: &Arc<Wake>,
        core: &Arc<Core>,
        claim: ClaimId,
        predecessor: Option<ClaimId>,
        until: Moment,
    ) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        if state.wanted.insert(claim, until + KEPT_BEYOND).is_none() {
            self.changed.notify_one();
        }
        let Some(predecessor) = predecessor else { return };
        if state.watches.get(&claim).is_some_and(|watch| watch.predecessor == predecessor) {
            return;
        }
        state.watches.remove(&claim);
        // One of our own is told within this process.
        if state.wanted.contains_key(&predecessor) || state.watches.len() >= WATCHES_MAX {
            return;
        }
        let (wake, core_of) = (Arc::clone(self), Arc::clone(core));
        let task = core.io.back().spawn(async move {
            // It is polled for, too.
            let _ = wake.watch(&core_of, claim, predecessor).await;
        });
        state.watches.insert(claim, Watch { predecessor, task: task.abort_handle() });
    }

    /// A claim holds: it waits no longer, and keeps its lock if it has one.
    pub(crate) fn holds(&self, claim: ClaimId, until: Moment) {
        let mut state = self.lock();
        state.watches.remove(&claim);
        if let Some(kept) = state.wanted.get_mut(&claim) {
            *kept = until + KEPT_BEYOND;
        }
    }

    /// A claim has ended: whoever stands behind it is to look.
    pub(crate) fn ended(&self, claim: ClaimId) {
        let mut state = self.lock();
        state.watches.remove(&claim);
        if state.wanted.remove(&claim).is_some() {
            self.changed.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.wanted.clear();
        state.watches.clear();
        state.idle.clear();
        self.changed.notify_one();
    }

    /// Keeps the locks of our own claims on one connection, until the store is closed.
    pub(crate) async fn keep(self: Arc<Wake>, core: Arc<Core>) {
        let mut backoff = core.backoff(Duration::from_millis(20), Duration::from_secs(1));
        let mut session: Option<Session> = None;
        let mut kept: BTreeSet<ClaimId> = BTreeSet::new();
        loop {
            let now = core.clocks.now();
            let wanted: BTreeSet<ClaimId> = {
                let mut state = self.lock();
                if state.closed {
                    return;
                }
                let State { wanted, watches, .. } = &mut *state;
                wanted.retain(|_, until| *until > now);
                watches.retain(|claim, _| wanted.contains_key(claim));
                wanted.keys().copied().collect()
            };
            if wanted == kept {
                // Looked through now and then: some may have run out.
                let _ = tokio::time::timeout(KEPT_BEYOND, self.changed.notified()).await;
                continue;
            }
            match Wake::keep_these(&core, &mut session, &mut kept, &wanted).await {
                Ok(()) => backoff.reset(),
                Err(_) => {
                    // With its connection all its locks are gone; those behind look.
                    session = None;
                    kept.clear();
                    tokio::time::sleep(backoff.next_wait()).await;
                }
            }
        }
    }

    async fn keep_these(
        core: &Core,
        session: &mut Option<Session>,
        kept: &mut BTreeSet<ClaimId>,
        wanted: &BTreeSet<ClaimId>,
    ) -> Result<()> {
        let open = match session {
            Some(session) => session,
            None => session.insert(core.dial().await?),
        };
        let mut sql = Sql::new();
        for claim in kept.difference(wanted) {
            named(sql.text("DO RELEASE_LOCK("), *claim).text("); ");
        }
        for claim in wanted.difference(kept) {
            named(sql.text("DO GET_LOCK("), *claim).text(", 0); ");
        }
        open.ask(&sql).await.map_err(Fail::into_error)?;
        kept.clone_from(wanted);
        Ok(())
    }

    /// Waits until the predecessor's lock is free, and makes the claim look.
    async fn watch(&self, core: &Core, claim: ClaimId, predecessor: ClaimId) -> Result<()> {
        let spare = self.lock().idle.pop();
        let mut session = match spare {
            Some(session) => session,
            None => core.dial().await?,
        };
        let mut sql = Sql::new();
        named(sql.text("SELECT IF(IS_FREE_LOCK("), predecessor).text("), 2, GET_LOCK(");
        named(&mut sql, predecessor).text(", ").num(WAIT_SECONDS).text("))");
        loop {
            let sets = session.ask(&sql).await.map_err(Fail::into_error)?;
            let row = sets.into_iter().flat_map(|set| set.rows).next();
            match row.map(|row| Cells::new(row).maybe_num()).transpose()?.flatten() {
                Some(0) => {}
                // It keeps none, or not yet.
                Some(2) => tokio::time::sleep(LOOK_AGAIN).await,
                Some(_) => break,
                None => return Ok(()),
            }
        }
        core.hub.moved(claim);
        let mut sql = Sql::new();
        named(sql.text("DO RELEASE_LOCK("), predecessor).text(")");
        session.ask(&sql).await.map_err(Fail::into_error)?;
        let mut state = self.lock();
        if !state.closed && state.idle.len() < WATCHES_MAX {
            state.idle.push(session);
        }
        Ok(())
    }
}

/// The name of a claim's lock: the same length and case always, whatever the server makes of it.
fn named(sql: &mut Sql, claim: ClaimId) -> &mut Sql {
    sql.bytes(format!("leasehold_{claim}").as_bytes())
}
