//! The first user of the suite: core's `Model` behind a mutex, by a clock set by hand.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::model::{Handover, Tick};
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, ClockKind, Cursor, Drift, Ended, Error,
    ErrorKind, Hint, Left, Life, Model, Modes, Moment, Page, Place, PlaceKept, Profile, Queue,
    Record, Reentry, Renewed, ResourceName, Result, Route, Store, Token, Written, belief_end,
};

use crate::block_on::block_on;
use crate::harness::{Ability, Harness, Hurt, LocalFuture};

/// A world in memory: what the suite itself is tested with.
///
/// Its clock stands still but for [`Harness::pass`], so its cases take no time.
#[derive(Debug)]
pub struct MemoryHarness {
    world: Arc<World>,
    profile: Profile,
}

impl MemoryHarness {
    /// A store that keeps every promise.
    pub fn new() -> MemoryHarness {
        MemoryHarness::with(full_profile())
    }

    /// A store that promises little: no queue, no order, exclusive claims only.
    pub fn plain() -> MemoryHarness {
        MemoryHarness::with(Profile {
            name: "plain-memory",
            queues: false,
            fair: false,
            sees_death: false,
            modes: Modes { shared: false, permits: false },
            token_hazards: &["an evicted name forgets its counter"],
            ..full_profile()
        })
    }

    fn with(profile: Profile) -> MemoryHarness {
        let handover =
            Handover { first_term: Duration::from_secs(2), push_min: Duration::from_millis(500) };
        let state = State {
            model: Model::new(handover),
            now: Moment::from_nanos(1_000_000_000),
            news: BTreeMap::new(),
            owners: BTreeMap::new(),
            wakers: Vec::new(),
            clients: 0,
        };
        MemoryHarness { world: Arc::new(World(Mutex::new(state))), profile }
    }
}

impl Default for MemoryHarness {
    fn default() -> MemoryHarness {
        MemoryHarness::new()
    }
}

fn full_profile() -> Profile {
    Profile {
        name: "memory",
        url: String::from("memory:"),
        clock: ClockKind::Monotonic,
        drift: Drift::None,
        clock_hazards: &[],
        fair: true,
        queues: true,
        sees_death: true,
        place: PlaceKept::Heartbeat { every: Duration::from_secs(1), term: Duration::from_secs(3) },
        reentry: Reentry::Store,
        modes: Modes::ALL,
        term_bounds: (Duration::from_millis(100), Duration::from_secs(24 * 3600)),
        transferable: true,
        polls_anywhere: true,
        remote: false,
        token_hazards: &[],
        limits: &[],
    }
}

impl Harness for MemoryHarness {
    fn open(&self) -> Arc<dyn Store> {
        let mut state = self.world.lock();
        state.clients += 1;
        let client = state.clients;
        Arc::new(ModelStore {
            client,
            world: Arc::clone(&self.world),
            profile: self.profile.clone(),
        })
    }

    fn now(&self) -> Moment {
        self.world.lock().now
    }

    fn pass(&self, span: Duration) {
        let mut state = self.world.lock();
        state.now = state.now + span;
        state.wake();
        drop(state);
        // Threads that wait for each other make real progress while the clock steps.
        thread::sleep(Duration::from_micros(200));
    }

    fn run(&self, case: LocalFuture<'_>) {
        block_on(case);
    }

    fn hurt(&self, hurt: Hurt<'_>) -> Ability {
        match hurt {
            Hurt::Kill(_) if !self.profile.sees_death => {
                Ability::Absent("a store in memory has no process that it could see die")
            }
            Hurt::Kill(client) => {
                let route = client.route(&any_name());
                self.world.lock().kill(route.0);
                Ability::Done
            }
            Hurt::Sever | Hurt::Pause | Hurt::Resume => {
                Ability::Absent("a store in memory has no connections and no server")
            }
            Hurt::Evict(name) => {
                let mut state = self.world.lock();
                if let Some(resource) = state.model.resources.remove(name) {
                    let kept =
                        resource.last_token.filter(|_| self.profile.token_hazards.is_empty());
                    state.model.cleaned = state.model.cleaned.max(kept);
                }
                state.deliver(Some(name));
                Ability::Done
            }
        }
    }
}

fn any_name() -> ResourceName {
    match ResourceName::new("any") {
        Ok(name) => name,
        Err(bad) => unreachable!("{bad}"),
    }
}

/// What all clients of one world share.
#[derive(Debug)]
struct World(Mutex<State>);

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State {
    model: Model,
    now: Moment,
    /// Undelivered grants and the last move, by client and resource.
    news: BTreeMap<(u64, ResourceName), News>,
    /// Which client entered a claim, and on what.
    owners: BTreeMap<ClaimId, (u64, ResourceName)>,
    wakers: Vec<Waker>,
    clients: u64,
}

#[derive(Debug, Default)]
struct News {
    granted: VecDeque<Hint>,
    moved: Cursor,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("now", &self.now).field("model", &self.model).finish()
    }
}

impl State {
    fn tick(&self) -> Tick {
        Tick { now: self.now, floor: 0 }
    }

    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    /// Sorts the model's words by client, and tells everyone who watches `changed` to look.
    fn deliver(&mut self, changed: Option<&ResourceName>) {
        while let Some((name, claim, hint)) = self.model.hints.pop_front() {
            let Some((client, _)) = self.owners.get(&claim) else { continue };
            let news = self.news.entry((*client, name)).or_default();
            match hint {
                Hint::Moved(cursor) => news.moved = news.moved.max(cursor),
                granted @ Hint::Granted(_) => news.granted.push_back(granted),
            }
        }
        if let Some(name) = changed {
            self.model.serial += 1;
            let cursor = Cursor(self.model.serial);
            for ((_, watched), news) in &mut self.news {
                if watched == name {
                    news.moved = cursor;
                }
            }
        }
        self.wake();
    }

    fn kill(&mut self, client: u64) {
        let at = self.tick();
        let owned = self.owners.iter().filter(|(_, (owner, _))| *owner == client);
        let owned: Vec<_> = owned.map(|(id, (_, name))| (*id, name.clone())).collect();
        for (id, name) in owned {
            let entry = self.model.resources.get(&name);
            let entry = entry.and_then(|r| r.entries.iter().find(|e| e.claim.id == id));
            if entry.is_some_and(|e| e.claim.life == Life::Process) {
                // Tokens do not run out in a test.
                let _ = self.model.end(at, &name, id, Ended::Died);
                self.deliver(Some(&name));
            }
        }
    }
}

/// One client of a world in memory.
#[derive(Debug)]
struct ModelStore {
    client: u64,
    world: Arc<World>,
    profile: Profile,
}

impl ModelStore {
    fn until(&self, now: Moment) -> impl Fn(Duration) -> Moment {
        let drift = self.profile.drift;
        move |left| belief_end(now, left, drift)
    }

    /// Refuses what the profile excludes.
    fn check(&self, claim: &Claim) -> Result<()> {
        let refuse = |kind, detail: &str| {
            Err(Error::new(kind, "enter the queue", detail).on(&claim.resource).at("memory:"))
        };
        let (low, high) = self.profile.term_bounds;
        match claim.mode {
            _ if claim.term < low || claim.term > high => {
                refuse(ErrorKind::Usage, "the term is out of bounds")
            }
            leasehold_core::Mode::Shared if !self.profile.modes.shared => {
                refuse(ErrorKind::Unsupported, "shared claims")
            }
            leasehold_core::Mode::Permits { .. } if !self.profile.modes.permits => {
                refuse(ErrorKind::Unsupported, "permits")
            }
            _ => Ok(()),
        }
    }

    /// What this client has been told of a resource and not yet heard.
    fn news(&self, state: &mut State, name: &ResourceName, since: Cursor) -> Option<Hint> {
        let news = state.news.get_mut(&(self.client, name.clone()))?;
        if let Some(granted) = news.granted.pop_front() {
            return Some(granted);
        }
        (news.moved > since).then_some(Hint::Moved(news.moved))
    }
}

#[async_trait]
impl Store for ModelStore {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, _resource: &ResourceName) -> Route {
        Route(self.client)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        self.check(claim)?;
        let mut state = self.world.lock();
        let at = state.tick();
        state.owners.insert(claim.id, (self.client, claim.resource.clone()));
        state.news.entry((self.client, claim.resource.clone())).or_default();
        let place = if self.profile.queues { claim.place } else { Place::No };
        let answer = state.model.enter(at, &Claim { place, ..claim.clone() });
        state.deliver(None);
        Ok(answer?.map_until(self.until(at.now)))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let mut state = self.world.lock();
        let at = state.tick();
        let renew = |c: &ClaimRef| state.model.renew(at, c).map_until(self.until(at.now));
        let answers = claims.iter().map(renew).collect();
        state.deliver(None);
        answers
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let mut state = self.world.lock();
        let at = state.tick();
        let left = state.model.leave(at, claim);
        state.deliver(Some(&claim.resource));
        left
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        _claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let end = self.world.lock().now + at_most;
        poll_fn(|context| {
            let mut state = self.world.lock();
            if let Some(hint) = self.news(&mut state, resource, since) {
                return Poll::Ready(Ok(hint));
            }
            if state.now >= end {
                return Poll::Ready(Ok(Hint::Moved(since)));
            }
            state.wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        let state = self.world.lock();
        Ok(state.model.inspect(state.tick(), resource))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        Ok(self.world.lock().model.list(page))
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let mut state = self.world.lock();
        let at = state.tick();
        state.model.write(at, claim, value, keep)
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        let state = self.world.lock();
        Ok(state.model.read(state.tick(), resource))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let mut state = self.world.lock();
        let at = state.tick();
        let broken = state.model.break_(at, resource, expect, now);
        state.deliver(Some(resource));
        broken
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let mut state = self.world.lock();
        let at = state.tick();
        Ok(state.model.clean(at, keep, page, dry))
    }

    async fn disturbed(&self, _since: Cursor) -> Cursor {
        std::future::pending().await
    }

    async fn close(&self) {}
}
