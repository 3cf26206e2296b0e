//! What the claims of this process wait for: word of a grant, of a foreign client's release, and of
//! anything that may have been missed.
//!
//! One channel a process carries the word of all its waiting claims (in a cluster one a resource,
//! since word is heard in its slot's shard only). It is listened on from the first wait until a
//! while after the last, on the side of those who wait: word goes from the connection to the waiting
//! task without another thread between them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, ClaimId, Cursor, Error, ErrorKind, Grant, Hint, Pushed, PushedEnd,
    ResourceName, Result, Ticket, Waiting,
};
use leasehold_net::Io;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::Layout;
use crate::keys::{Keys, foreign_channel};
use crate::link::{Event, Link, Listener, Side, Subscription, slot_of, word_in};
use crate::told::{DOING, corrupt, previous_of, slots_of, token_of};

/// For how long the channel is listened on after the last wait.
const LINGER: Duration = Duration::from_secs(1);
/// When listening is tried again that was refused.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest wait for word.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The waiting side of a process.
pub(crate) struct Hub {
    link: Link,
    io: Io,
    layout: Layout,
    /// Grants that others made are looked at before they are believed.
    confirms: bool,
    is_cluster: bool,
    wake: String,
    state: Mutex<State>,
    /// Word for those who wait for no claim in particular.
    any: Notify,
}

#[derive(Default)]
struct State {
    closed: bool,
    cursor: u64,
    /// When all were last told to look.
    nudged: u64,
    claims: HashMap<ClaimId, Waiter>,
    slots: HashMap<ResourceName, Slot>,
    ears: HashMap<(Side, Vec<u8>), Ear>,
}

struct Waiter {
    resource: ResourceName,
    cursor: u64,
    pushed: Option<Pushed>,
    word: Arc<Notify>,
    /// Listens for the foreign client that holds.
    foreign: Option<AbortHandle>,
}

#[derive(Default)]
struct Slot {
    cursor: u64,
    claims: usize,
}

/// A channel that is listened on.
struct Ear {
    _subscription: Subscription,
    /// The one resource it is for, in a cluster.
    resource: Option<ResourceName>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("wake", &self.wake).finish_non_exhaustive()
    }
}

impl Hub {
    pub(crate) fn new(link: Link, io: Io, layout: Layout, confirms: bool, id: u128) -> Arc<Hub> {
        Arc::new(Hub {
            is_cluster: link.facts().cluster,
            link,
            io,
            layout,
            confirms,
            wake: format!("wake:{id:032x}"),
            state: Mutex::default(),
            any: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where word for this process's claims on a resource is published.
    pub(crate) fn wake_channel(&self, resource: &ResourceName) -> Vec<u8> {
        if self.is_cluster {
            // A channel is one word to the scripts, and a name may be several.
            let slot = slot_of(Keys::of(self.layout, resource).lock());
            let name = resource.escaped(b"");
            format!("leasehold:{}:{{{}}}:{name}", self.wake, word_in(slot)).into_bytes()
        } else {
            format!("leasehold:{}", self.wake).into_bytes()
        }
    }

    /// Whether word on a resource is heard where the caller is.
    pub(crate) fn is_listening(&self, resource: &ResourceName) -> bool {
        let state = self.lock();
        !state.ears.is_empty()
            && state.ears.contains_key(&(self.link.side(), self.wake_channel(resource)))
    }

    /// Listens for word on a resource, where the caller is.
    pub(crate) async fn listen(self: &Arc<Hub>, resource: &ResourceName) -> Result<()> {
        let key = (self.link.side(), self.wake_channel(resource));
        if self.lock().ears.contains_key(&key) {
            return Ok(());
        }
        let only = self.is_cluster.then(|| resource.clone());
        let (hub, nudged) = (Arc::downgrade(self), only.clone());
        let listener: Listener = Arc::new(move |event| {
            let Some(hub) = hub.upgrade() else { return };
            match event {
                Event::Message(message) => hub.receive(message),
                Event::Nudge => hub.nudge(nudged.as_ref()),
            }
        });
        let subscription = self.link.subscribe(key.0, &key.1, listener).await?;
        let mut state = self.lock();
        if state.closed {
            return Err(closed());
        }
        if let Entry::Vacant(ear) = state.ears.entry(key) {
            self.io.back().spawn(linger(Arc::downgrade(self), ear.key().clone()));
            ear.insert(Ear { _subscription: subscription, resource: only });
        }
        Ok(())
    }

    /// Whether a channel is of no more use; then it is forgotten.
    fn retire(&self, key: &(Side, Vec<u8>)) -> bool {
        let mut state = self.lock();
        let Some(ear) = state.ears.get(key) else { return true };
        let is_used = match &ear.resource {
            Some(resource) => state.slots.contains_key(resource),
            None => !state.claims.is_empty(),
        };
        if !is_used {
            state.ears.remove(key);
        }
        !is_used
    }

    /// Notes a claim that may come to wait; whether it was known.
    fn expect(&self, claim: &Claim) -> bool {
        let mut state = self.lock();
        if state.claims.contains_key(&claim.id) {
            return true;
        }
        state.add(claim.id, &claim.resource);
        false
    }

    /// A claim waits, and perhaps is the one to listen for the foreign client that holds.
    pub(crate) fn waits(
        self: &Arc<Hub>,
        claim: ClaimId,
        resource: &ResourceName,
        waiting: &Waiting,
        listens: bool,
    ) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        if !state.claims.contains_key(&claim) {
            state.add(claim, resource);
        }
        let Some(waiter) = state.claims.get_mut(&claim) else { return };
        waiter.pushed.take_if(|pushed| pushed.ticket != waiting.ticket);
        if !listens || self.layout == Layout::Plain {
            if let Some(task) = waiter.foreign.take() {
                task.abort();
            }
        } else if waiter.foreign.is_none() {
            let channel = foreign_channel(self.layout, resource);
            let hub = Arc::downgrade(self);
            let heard = hear_foreign(hub, self.link.clone(), self.link.side(), channel, claim);
            waiter.foreign = Some(self.io.back().spawn(heard).abort_handle());
        }
    }

    /// A claim waits no longer.
    pub(crate) fn forget(&self, claim: ClaimId) {
        let mut state = self.lock();
        let Some(waiter) = state.claims.remove(&claim) else { return };
        if let Some(task) = &waiter.foreign {
            task.abort();
        }
        if let Some(slot) = state.slots.get_mut(&waiter.resource) {
            slot.claims -= 1;
            if slot.claims == 0 {
                state.slots.remove(&waiter.resource);
            }
        }
    }

    /// Waits for word on a resource, or for one claim on it.
    pub(crate) async fn changed(
        &self,
        io: &Io,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let sleep = {
            // Made there, it may be polled anywhere.
            let _there = io.back().enter();
            tokio::time::sleep(at_most.min(WAIT_MAX))
        };
        let mut sleep = pin!(sleep);
        loop {
            let mut any = pin!(self.any.notified());
            any.as_mut().enable();
            let word = match self.lock().news(resource, claim, since) {
                News::Hint(hint) => return Ok(hint),
                News::Closed => return Err(closed()),
                News::Wait(word) => word,
            };
            let heard = async {
                match &word {
                    Some(word) => futures_lite::future::or(word.notified(), any).await,
                    None => any.await,
                }
                false
            };
            let over = async {
                sleep.as_mut().await;
                true
            };
            if futures_lite::future::or(heard, over).await {
                let cursor = self.lock().cursor_of(resource, claim);
                return Ok(Hint::Moved(Cursor(cursor).max(since)));
            }
        }
    }

    fn receive(&self, message: &[u8]) {
        let text = String::from_utf8_lossy(message);
        let mut words = text.split(' ');
        let (what, claim) = (words.next(), words.next());
        let Some(claim) = claim.and_then(|id| id.parse::<ClaimId>().ok()) else { return };
        match what {
            Some("n") => self.moved(claim),
            Some("g") => match pushed(claim, words) {
                Ok(pushed) => self.granted(claim, pushed),
                Err(error) => {
                    tracing::debug!(target: "leasehold", %error, "word of a grant is not one");
                    self.moved(claim);
                }
            },
            _ => {}
        }
    }

    fn granted(&self, claim: ClaimId, pushed: Pushed) {
        if self.confirms {
            return self.moved(claim);
        }
        let mut state = self.lock();
        let Some(waiter) = state.claims.get_mut(&claim) else { return };
        waiter.pushed = Some(pushed);
        let word = Arc::clone(&waiter.word);
        drop(state);
        word.notify_one();
        self.any.notify_waiters();
    }

    fn moved(&self, claim: ClaimId) {
        let mut state = self.lock();
        state.cursor += 1;
        let cursor = state.cursor;
        let Some(waiter) = state.claims.get_mut(&claim) else { return };
        waiter.cursor = cursor;
        let (word, resource) = (Arc::clone(&waiter.word), waiter.resource.clone());
        if let Some(slot) = state.slots.get_mut(&resource) {
            slot.cursor = cursor;
        }
        drop(state);
        word.notify_one();
        self.any.notify_waiters();
    }

    /// Something may have been missed, on this resource only or on any: all who wait look once.
    fn nudge(&self, only: Option<&ResourceName>) {
        let mut state = self.lock();
        state.cursor += 1;
        let cursor = state.cursor;
        let mut words = Vec::new();
        for waiter in state.claims.values_mut() {
            if only.is_none_or(|resource| *resource == waiter.resource) {
                waiter.cursor = cursor;
                words.push(Arc::clone(&waiter.word));
            }
        }
        for (resource, slot) in &mut state.slots {
            if only.is_none_or(|only| only == resource) {
                slot.cursor = cursor;
            }
        }
        if only.is_none() {
            state.nudged = cursor;
        }
        drop(state);
        words.iter().for_each(|word| word.notify_one());
        self.any.notify_waiters();
    }

    /// Lets go of everything; what still waits is woken.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let ears = std::mem::take(&mut state.ears);
        let claims = std::mem::take(&mut state.claims);
        state.slots.clear();
        drop(state);
        drop(ears);
        for waiter in claims.into_values() {
            if let Some(task) = waiter.foreign {
                task.abort();
            }
            waiter.word.notify_one();
        }
        self.any.notify_waiters();
    }
}

enum News {
    Hint(Hint),
    /// Nothing yet; by this the claim will be told.
    Wait(Option<Arc<Notify>>),
    Closed,
}

impl State {
    fn add(&mut self, claim: ClaimId, resource: &ResourceName) {
        let (cursor, pushed, foreign) = (0, None, None);
        let resource = resource.clone();
        self.slots.entry(resource.clone()).or_default().claims += 1;
        let word = Arc::default();
        self.claims.insert(claim, Waiter { resource, cursor, pushed, word, foreign });
    }

    fn cursor_of(&self, resource: &ResourceName, claim: Option<ClaimId>) -> u64 {
        let waiter = claim.and_then(|claim| self.claims.get(&claim));
        let slot = || self.slots.get(resource).map(|slot| slot.cursor);
        waiter.map(|waiter| waiter.cursor).or_else(slot).unwrap_or(self.nudged)
    }

    fn news(&mut self, resource: &ResourceName, claim: Option<ClaimId>, since: Cursor) -> News {
        if self.closed {
            return News::Closed;
        }
        let cursor = Cursor(self.cursor_of(resource, claim));
        let waiter = claim.and_then(|claim| self.claims.get_mut(&claim));
        if let Some(waiter) = waiter {
            if let Some(pushed) = waiter.pushed.take() {
                return News::Hint(Hint::Granted(pushed));
            }
            if cursor > since {
                return News::Hint(Hint::Moved(cursor));
            }
            return News::Wait(Some(Arc::clone(&waiter.word)));
        }
        let mut waiters = self.claims.values_mut().filter(|waiter| waiter.resource == *resource);
        if let Some(pushed) = waiters.find_map(|waiter| waiter.pushed.take()) {
            return News::Hint(Hint::Granted(pushed));
        }
        if cursor > since { News::Hint(Hint::Moved(cursor)) } else { News::Wait(None) }
    }
}

/// A claim that is being entered: known to the hub before the server knows it.
pub(crate) struct Expected<'h> {
    hub: &'h Arc<Hub>,
    claim: ClaimId,
    resource: &'h ResourceName,
    stays: bool,
}

impl<'h> Expected<'h> {
    pub(crate) fn new(hub: &'h Arc<Hub>, claim: &'h Claim) -> Expected<'h> {
        let stays = hub.expect(claim);
        Expected { hub, claim: claim.id, resource: &claim.resource, stays }
    }

    pub(crate) fn waits(&self, waiting: &Waiting, listens: bool) {
        self.hub.waits(self.claim, self.resource, waiting, listens);
    }

    /// The answer to the enter: a waiting claim stays known.
    pub(crate) fn keep(mut self, answer: Admission) -> Admission {
        self.stays = matches!(answer, Admission::Waiting(_));
        answer
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.hub.forget(self.claim);
        }
    }
}

/// Goes on listening on a channel for a while after nobody waits for word of it.
async fn linger(hub: Weak<Hub>, key: (Side, Vec<u8>)) {
    loop {
        tokio::time::sleep(LINGER).await;
        if hub.upgrade().is_none_or(|hub| hub.retire(&key)) {
            return;
        }
    }
}

/// Listens for a foreign client's release on behalf of the first in line.
async fn hear_foreign(hub: Weak<Hub>, link: Link, side: Side, channel: Vec<u8>, claim: ClaimId) {
    let told = hub.clone();
    let listener: Listener = Arc::new(move |_| {
        if let Some(hub) = told.upgrade() {
            hub.moved(claim);
        }
    });
    loop {
        match link.subscribe(side, &channel, Arc::clone(&listener)).await {
            Ok(_subscription) => {
                listener(Event::Nudge); // listen, then look
                std::future::pending::<()>().await;
            }
            Err(error) => {
                tracing::debug!(target: "leasehold", %error, "a foreign holder is not heard");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// A grant as the script tells of it: `TICKET TOKEN TERM PREVIOUS SLOTS`.
fn pushed<'w>(claim: ClaimId, mut words: impl Iterator<Item = &'w str>) -> Result<Pushed> {
    let mut word = || words.next().ok_or_else(|| corrupt("word of a grant is too short"));
    let number = |word: &str| word.parse::<u64>().map_err(|_| corrupt("a number is not one"));
    let ticket = Ticket(number(word()?)?);
    let token = token_of(number(word()?)?)?;
    let first_term = Duration::from_micros(number(word()?)?);
    let previous = previous_of(word()?)?;
    let slots = slots_of(word()?)?;
    let until = PushedEnd::FirstTerm(first_term);
    Ok(Pushed { grant: Grant { claim, token, until, slots, previous }, ticket })
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, DOING, "the store was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_of_a_grant_is_read_strictly() {
        let id = ClaimId::from_bits(7);
        let read = pushed(id, "5 9 1500 R 0,2".split(' ')).unwrap();
        assert_eq!((read.ticket, read.grant.token.get()), (Ticket(5), 9));
        assert_eq!(read.grant.slots.as_slice(), [0, 2]);
        let term = PushedEnd::FirstTerm(Duration::from_micros(1500));
        assert_eq!(read.grant.until, term);
        for bad in ["", "5", "5 0 1 R -", "5 9 1 X -", "5 9 1 R x", "a 9 1 R -"] {
            assert!(pushed(id, bad.split(' ')).is_err(), "{bad:?}");
        }
    }
}
