//! What this process waits for: word of hand-overs, and of what has disturbed its connections.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{ClaimId, Cursor, Hint, Pushed, ResourceName};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The most claims that wait in one process.
const CLAIMS_MAX: usize = 100_000;

/// The waiting side of a process.
#[derive(Default)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// Rung when something waits that did not before.
    waits: Notify,
    disturbed: Notify,
}

#[derive(Default)]
struct State {
    serial: u64,
    disturbed: u64,
    claims: HashMap<ClaimId, Expected>,
    /// Those that wait on a name, and the last time all of them were told to look.
    names: HashMap<ResourceName, Name>,
}

struct Expected {
    resource: ResourceName,
    pushed: Option<Pushed>,
    /// The last word to this claim alone.
    cursor: u64,
}

#[derive(Default)]
struct Name {
    claims: usize,
    cursor: u64,
    /// Grants for claims that nobody waits for by their id.
    loose: VecDeque<ClaimId>,
    watchers: BTreeMap<u64, (Option<ClaimId>, Arc<Notify>)>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets ready to be told of a claim. Called before the claim is sent.
    pub(crate) fn expect(&self, claim: ClaimId, resource: &ResourceName) {
        let mut state = self.lock();
        if state.claims.len() >= CLAIMS_MAX || state.claims.contains_key(&claim) {
            return; // without word it looks by itself
        }
        let expected = Expected { resource: resource.clone(), pushed: None, cursor: 0 };
        state.claims.insert(claim, expected);
        state.names.entry(resource.clone()).or_default().claims += 1;
        drop(state);
        self.waits.notify_one();
    }

    /// A claim waits no more.
    pub(crate) fn forget(&self, claim: ClaimId) {
        let mut state = self.lock();
        let Some(expected) = state.claims.remove(&claim) else { return };
        if let Some(name) = state.names.get_mut(&expected.resource) {
            name.claims -= 1;
            name.loose.retain(|id| *id != claim);
        }
        state.tidy(&expected.resource);
    }

    /// Word of a hand-over.
    pub(crate) fn granted(&self, pushed: Pushed) {
        let claim = pushed.grant.claim;
        self.word(claim, Some(pushed));
    }

    /// Word that a claim should look.
    pub(crate) fn moved(&self, claim: ClaimId) {
        self.word(claim, None);
    }

    fn word(&self, claim: ClaimId, pushed: Option<Pushed>) {
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        let Some(expected) = state.claims.get_mut(&claim) else { return };
        expected.cursor = serial;
        let is_grant = pushed.is_some();
        expected.pushed = pushed.or(expected.pushed.take());
        let resource = expected.resource.clone();
        let Some(name) = state.names.get_mut(&resource) else { return };
        let own = |w: &&(Option<ClaimId>, Arc<Notify>)| w.0 == Some(claim);
        if let Some((_, bell)) = name.watchers.values().find(own) {
            bell.notify_one();
            return;
        }
        // Nobody waits by its id: whoever waits for the name hears it.
        if is_grant {
            name.loose.push_back(claim);
        } else {
            name.cursor = serial;
        }
        for (_, bell) in name.watchers.values().filter(|w| w.0.is_none()) {
            bell.notify_one();
        }
    }

    /// Words may have been lost: everybody looks once.
    pub(crate) fn moved_all(&self) {
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        for name in state.names.values_mut() {
            name.cursor = serial;
            for (_, bell) in name.watchers.values() {
                bell.notify_one();
            }
        }
    }

    /// Claims may have ended unseen.
    pub(crate) fn disturb(&self) {
        self.lock().disturbed += 1;
        self.disturbed.notify_waiters();
        self.moved_all();
    }

    /// As [`Store::disturbed`](leasehold_core::Store::disturbed).
    pub(crate) async fn disturbed(&self, since: Cursor) -> Cursor {
        loop {
            let mut notified = std::pin::pin!(self.disturbed.notified());
            notified.as_mut().enable();
            let at = self.lock().disturbed;
            if at > since.0 {
                return Cursor(at);
            }
            notified.await;
        }
    }

    /// The claims that wait, for whoever looks for them.
    pub(crate) fn waiting(&self) -> Vec<(ClaimId, ResourceName)> {
        let state = self.lock();
        state.claims.iter().map(|(id, e)| (*id, e.resource.clone())).collect()
    }

    /// Whether any claim waits.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.lock().claims.is_empty()
    }

    /// Waits until any claim waits.
    pub(crate) async fn any_waiting(&self) {
        while !self.has_waiting() {
            self.waits.notified().await;
        }
    }

    /// As [`Store::changed`](leasehold_core::Store::changed); `back` turns the timer.
    pub(crate) async fn changed(
        &self,
        back: &Handle,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Hint {
        let watcher = self.watch(resource, claim);
        let sleep = {
            let _guard = back.enter();
            // The runtime's timer does not reach further.
            tokio::time::sleep(at_most.min(Duration::from_secs(3600 * 24 * 365)))
        };
        let mut sleep = std::pin::pin!(sleep);
        loop {
            if let Some(hint) = self.heard(resource, claim, since) {
                return hint;
            }
            tokio::select! {
                () = watcher.bell.notified() => {}
                () = &mut sleep => return Hint::Moved(since),
            }
        }
    }

    fn watch(&self, resource: &ResourceName, claim: Option<ClaimId>) -> Watcher<'_> {
        let bell = Arc::new(Notify::new());
        let mut state = self.lock();
        // A claim that does not wait here is told of all on the resource.
        let claim = claim.filter(|id| state.claims.contains_key(id));
        state.serial += 1;
        let number = state.serial;
        let name = state.names.entry(resource.clone()).or_default();
        name.watchers.insert(number, (claim, Arc::clone(&bell)));
        Watcher { hub: self, resource: resource.clone(), number, bell }
    }

    fn heard(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
    ) -> Option<Hint> {
        let mut state = self.lock();
        let own = claim.and_then(|id| state.claims.get_mut(&id));
        let mut cursor = 0;
        if let Some(expected) = own {
            if let Some(pushed) = expected.pushed.take() {
                return Some(Hint::Granted(pushed));
            }
            cursor = expected.cursor;
        } else {
            let loose = state.names.get_mut(resource).and_then(|name| name.loose.pop_front());
            if let Some(expected) = loose.and_then(|id| state.claims.get_mut(&id))
                && let Some(pushed) = expected.pushed.take()
            {
                return Some(Hint::Granted(pushed));
            }
        }
        let named = state.names.get(resource).map_or(0, |name| name.cursor);
        let cursor = Cursor(cursor.max(named));
        (cursor > since).then_some(Hint::Moved(cursor))
    }
}

impl State {
    fn tidy(&mut self, resource: &ResourceName) {
        let empty = |name: &Name| name.claims == 0 && name.watchers.is_empty();
        if self.names.get(resource).is_some_and(empty) {
            self.names.remove(resource);
        }
    }
}

/// One that waits, and goes away with its future.
struct Watcher<'h> {
    hub: &'h Hub,
    resource: ResourceName,
    number: u64,
    bell: Arc<Notify>,
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        if let Some(name) = state.names.get_mut(&self.resource) {
            name.watchers.remove(&self.number);
        }
        state.tidy(&self.resource);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Grant, Previous, PushedEnd, Slots, Ticket, Token};

    use super::*;

    fn pushed(claim: ClaimId) -> Pushed {
        let grant = Grant {
            claim,
            token: Token::new(7).unwrap(),
            until: PushedEnd::FirstTerm(Duration::from_secs(3)),
            slots: Slots::default(),
            previous: Previous::First,
        };
        Pushed { grant, ticket: Ticket(1) }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn a_hand_over_wakes_the_one_it_is_for() {
        let (hub, runtime) = (Hub::default(), runtime());
        let name = ResourceName::new("r").unwrap();
        let (a, b) = (ClaimId::from_bits(1), ClaimId::from_bits(2));
        hub.expect(a, &name);
        hub.expect(b, &name);
        runtime.block_on(async {
            let back = Handle::current();
            let long = Duration::from_secs(600);
            let since = Cursor::default();
            let mut for_a = std::pin::pin!(hub.changed(&back, &name, Some(a), since, long));
            let mut for_b = std::pin::pin!(hub.changed(&back, &name, Some(b), since, long));
            for _ in 0..2 {
                let first = futures_lite::future::poll_once(&mut for_a).await;
                assert!(first.is_none(), "{first:?}");
                assert!(futures_lite::future::poll_once(&mut for_b).await.is_none());
            }
            hub.granted(pushed(b));
            assert!(futures_lite::future::poll_once(&mut for_a).await.is_none());
            assert!(matches!(for_b.await, Hint::Granted(p) if p.grant.claim == b));
            hub.moved_all();
            assert!(matches!(for_a.await, Hint::Moved(_)));
        });
        hub.forget(a);
        hub.forget(b);
        assert!(hub.lock().names.is_empty() && hub.lock().claims.is_empty());
    }

    #[test]
    fn what_happened_before_the_call_is_heard_also_without_an_id() {
        let (hub, runtime) = (Hub::default(), runtime());
        let name = ResourceName::new("r").unwrap();
        let a = ClaimId::from_bits(1);
        hub.expect(a, &name);
        hub.granted(pushed(a));
        runtime.block_on(async {
            let (back, none) = (Handle::current(), Duration::ZERO);
            let hint = hub.changed(&back, &name, None, Cursor::default(), none).await;
            assert!(matches!(hint, Hint::Granted(_)), "{hint:?}");
            hub.disturb();
            assert_eq!(hub.disturbed(Cursor::default()).await, Cursor(1));
        });
    }
}
