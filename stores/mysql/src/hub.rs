//! What this client waits for: word of its waiting claims, and of what disturbs them all.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, Cursor, Hint, Pushed, ResourceName, Result, Ticket, Token};
use leasehold_net::Io;
use tokio::sync::Notify;

use crate::error::closed;

/// The waiting side of a client.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// Something new is waited for.
    poke: Notify,
    /// The number of disturbances has changed.
    disturbance: Notify,
}

#[derive(Debug, Default)]
struct State {
    cursor: u64,
    disturbed: u64,
    claims: HashMap<ClaimId, Expected>,
    slots: HashMap<ResourceName, Slot>,
    closed: bool,
}

/// A claim that waits.
#[derive(Debug)]
struct Expected {
    resource: ResourceName,
    ticket: Ticket,
    cursor: u64,
    pushed: Option<Pushed>,
    /// For who waits on its behalf.
    notify: Arc<Notify>,
}

/// What has happened on one resource.
#[derive(Debug, Default)]
struct Slot {
    cursor: u64,
    /// The last move that was one claim's alone.
    cursor_of_one: u64,
    /// For who waits on nobody's behalf.
    notify: Arc<Notify>,
    /// How many futures wait.
    watchers: usize,
    /// How many claims wait.
    claims: usize,
    /// The newest token that was seen: a newer one means that somebody was granted.
    token: Option<Token>,
}

/// What a poller asks about.
#[derive(Debug, Clone)]
pub(crate) struct Waited {
    pub(crate) token: Option<Token>,
    pub(crate) claims: Vec<(ClaimId, Ticket)>,
}

impl Hub {
    pub(crate) fn new() -> Arc<Hub> {
        Arc::new(Hub { state: Mutex::default(), poke: Notify::new(), disturbance: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim was answered waiting, while this was the newest token: it is to be told of more.
    pub(crate) fn expect(
        &self,
        claim: ClaimId,
        resource: &ResourceName,
        ticket: Ticket,
        token: Option<Token>,
    ) {
        let mut state = self.lock();
        let is_new = match state.claims.get_mut(&claim) {
            Some(expected) => {
                expected.ticket = ticket;
                false
            }
            None => {
                let expected = Expected {
                    resource: resource.clone(),
                    ticket,
                    cursor: 0,
                    pushed: None,
                    notify: Arc::default(),
                };
                state.claims.insert(claim, expected);
                true
            }
        };
        let slot = state.slots.entry(resource.clone()).or_default();
        // It may have been granted after its answer and before this, and seen by nobody.
        slot.token = if slot.claims == 0 { token } else { slot.token.min(token) };
        if is_new {
            slot.claims += 1;
            drop(state);
            self.poke.notify_one();
        }
    }

    /// A claim does not wait any more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        let mut state = self.lock();
        let Some(expected) = state.claims.remove(&claim) else { return };
        expected.notify.notify_waiters();
        let Some(slot) = state.slots.get_mut(&expected.resource) else { return };
        slot.claims -= 1;
        state.tidy(&expected.resource);
    }

    /// Tells a claim of this client that it was granted, if it waits here.
    pub(crate) fn push(&self, mut pushed: Pushed) {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(expected) = state.claims.get_mut(&pushed.grant.claim) else { return };
        if expected.pushed.is_some() {
            return;
        }
        pushed.ticket = expected.ticket;
        expected.pushed = Some(pushed);
        expected.notify.notify_waiters();
        if let Some(slot) = state.slots.get(&expected.resource) {
            slot.notify.notify_waiters();
        }
    }

    /// Makes who waits on behalf of a claim look.
    pub(crate) fn moved(&self, claim: ClaimId) {
        let mut state = self.lock();
        let state = &mut *state;
        state.cursor += 1;
        let Some(expected) = state.claims.get_mut(&claim) else { return };
        expected.cursor = state.cursor;
        expected.notify.notify_waiters();
        if let Some(slot) = state.slots.get_mut(&expected.resource) {
            slot.cursor_of_one = state.cursor;
            slot.notify.notify_waiters();
        }
    }

    /// Makes all who wait on a resource look.
    pub(crate) fn moved_on(&self, resource: &ResourceName) {
        self.lock().moved(resource);
    }

    /// The newest token of a resource was seen.
    pub(crate) fn saw(&self, resource: &ResourceName, token: Option<Token>) {
        if let Some(slot) = self.lock().slots.get_mut(resource) {
            slot.token = slot.token.max(token);
        }
    }

    /// What is waited for and was not told yet.
    pub(crate) fn waited(&self) -> BTreeMap<ResourceName, Waited> {
        let state = self.lock();
        let mut waited: BTreeMap<ResourceName, Waited> = BTreeMap::new();
        for (claim, expected) in &state.claims {
            let Some(slot) = state.slots.get(&expected.resource) else { continue };
            if expected.pushed.is_some() {
                continue;
            }
            let entry = waited
                .entry(expected.resource.clone())
                .or_insert_with(|| Waited { token: slot.token, claims: Vec::new() });
            entry.claims.push((*claim, expected.ticket));
        }
        waited
    }

    /// Comes back when something new is waited for, or the hub is closed.
    pub(crate) async fn poked(&self) {
        self.poke.notified().await;
    }

    /// Connections were lost, or the server's clock has stepped: all that wait look, and all that
    /// hold renew.
    pub(crate) fn disturb(&self) {
        let mut state = self.lock();
        state.disturbed += 1;
        let all: Vec<ResourceName> = state.slots.keys().cloned().collect();
        for resource in &all {
            state.moved(resource);
        }
        drop(state);
        self.disturbance.notify_waiters();
    }

    pub(crate) async fn disturbed(&self, since: Cursor) -> Cursor {
        loop {
            let notified = self.disturbance.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let now = {
                let state = self.lock();
                if state.closed { None } else { Some(Cursor(state.disturbed)) }
            };
            match now {
                Some(cursor) if cursor > since => return cursor,
                Some(_) => notified.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Waits for something to happen on a resource, on behalf of this claim if it waits here.
    pub(crate) async fn changed(
        &self,
        io: &Io,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let _watcher = Watcher::new(self, resource);
        // Made where it runs: a timer needs its runtime from its beginning.
        let timer = io.on_back("wait", async move { tokio::time::sleep(at_most).await });
        tokio::pin!(timer);
        loop {
            let notify = self.bell(resource, claim);
            let notified = notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            let cursor = match self.news(resource, claim, since)? {
                Hint::Moved(cursor) if cursor <= since => cursor,
                news => return Ok(news),
            };
            tokio::select! {
                biased;
                () = notified => {}
                ended = &mut timer => {
                    ended?;
                    return Ok(Hint::Moved(since.max(cursor)));
                }
            }
        }
    }

    fn bell(&self, resource: &ResourceName, claim: Option<ClaimId>) -> Arc<Notify> {
        let mut state = self.lock();
        match claim.and_then(|claim| state.claims.get(&claim)) {
            Some(expected) => Arc::clone(&expected.notify),
            None => Arc::clone(&state.slots.entry(resource.clone()).or_default().notify),
        }
    }

    /// What there is to tell; a grant is told once.
    fn news(&self, resource: &ResourceName, claim: Option<ClaimId>, since: Cursor) -> Result<Hint> {
        let mut state = self.lock();
        let state = &mut *state;
        if state.closed {
            return Err(closed());
        }
        let slot = state.slots.get(resource);
        let of_all = slot.map_or(0, |slot| slot.cursor);
        let (claim, cursor) = match claim.and_then(|id| Some((id, state.claims.get(&id)?))) {
            Some((id, expected)) => {
                (expected.pushed.is_some().then_some(id), of_all.max(expected.cursor))
            }
            None => {
                let told =
                    |(_, e): &(&ClaimId, &Expected)| e.pushed.is_some() && e.resource == *resource;
                let any = state.claims.iter().find(told).map(|(id, _)| *id);
                (any, of_all.max(slot.map_or(0, |slot| slot.cursor_of_one)))
            }
        };
        let pushed = claim.and_then(|id| state.claims.remove(&id)).and_then(|e| e.pushed);
        if let Some(pushed) = pushed {
            if let Some(slot) = state.slots.get_mut(resource) {
                slot.claims -= 1;
            }
            return Ok(Hint::Granted(pushed));
        }
        Ok(Hint::Moved(since.max(Cursor(cursor))))
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        for slot in state.slots.values() {
            slot.notify.notify_waiters();
        }
        for expected in state.claims.values() {
            expected.notify.notify_waiters();
        }
        drop(state);
        self.poke.notify_one();
        self.disturbance.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

impl State {
    fn moved(&mut self, resource: &ResourceName) {
        self.cursor += 1;
        let cursor = self.cursor;
        if let Some(slot) = self.slots.get_mut(resource) {
            slot.cursor = cursor;
            slot.notify.notify_waiters();
        }
        for expected in self.claims.values().filter(|e| e.resource == *resource) {
            expected.notify.notify_waiters();
        }
    }

    fn tidy(&mut self, resource: &ResourceName) {
        if self.slots.get(resource).is_some_and(|slot| slot.claims == 0 && slot.watchers == 0) {
            self.slots.remove(resource);
        }
    }
}

/// A future that waits on a resource; its slot stays while it does.
struct Watcher<'h> {
    hub: &'h Hub,
    resource: &'h ResourceName,
}

impl<'h> Watcher<'h> {
    fn new(hub: &'h Hub, resource: &'h ResourceName) -> Watcher<'h> {
        let mut state = hub.lock();
        state.slots.entry(resource.clone()).or_default().watchers += 1;
        Watcher { hub, resource }
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(slot) = state.slots.get_mut(self.resource) {
            slot.watchers -= 1;
        }
        state.tidy(self.resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    fn name() -> ResourceName {
        ResourceName::new("r").unwrap()
    }

    #[test]
    fn whoever_stops_waiting_leaves_nothing_behind() {
        let (hub, io) = (Hub::new(), Io::start("test").unwrap());
        let resource = name();
        for _ in 0..10 {
            let mut goes = Box::pin(hub.changed(
                &io,
                &resource,
                None,
                Cursor::default(),
                Duration::from_secs(60),
            ));
            assert!(block_on(poll_once(&mut goes)).is_none());
        }
        assert!(hub.lock().slots.is_empty());
        let claim = ClaimId::from_bits(1);
        hub.expect(claim, &resource, Ticket(1), None);
        hub.expect(claim, &resource, Ticket(1), None);
        assert_eq!(hub.waited().len(), 1);
        hub.forget(claim);
        hub.forget(claim);
        assert!(hub.lock().slots.is_empty() && hub.waited().is_empty());
    }

    #[test]
    fn a_disturbance_wakes_all_once() {
        let (hub, io) = (Hub::new(), Io::start("test").unwrap());
        let resource = name();
        hub.expect(ClaimId::from_bits(1), &resource, Ticket(1), None);
        let long = Duration::from_secs(60);
        let mut waits = Box::pin(hub.changed(&io, &resource, None, Cursor::default(), long));
        let mut told = Box::pin(hub.disturbed(Cursor::default()));
        assert!(block_on(poll_once(&mut waits)).is_none());
        assert!(block_on(poll_once(&mut told)).is_none());
        hub.disturb();
        let Hint::Moved(cursor) = block_on(waits).unwrap() else { panic!("nothing was granted") };
        let since = block_on(told);
        assert!(block_on(poll_once(hub.disturbed(since))).is_none());
        let mut again = Box::pin(hub.changed(&io, &resource, None, cursor, long));
        assert!(block_on(poll_once(&mut again)).is_none());
    }
}
