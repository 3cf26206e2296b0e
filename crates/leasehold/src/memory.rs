//! A store in the memory of one process: for tests of code that uses leases.
//!
//! It is core's [`Model`] behind a mutex, and it does as it is told: lose a grant, break it, hold
//! back its answers, fail. With a clock set by hand, what happens after a minute is seen at once.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::memory::Memory;
//! use leasehold::{Loss, State};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! leasehold::blocking::block_on(async {
//!     let memory = Memory::with_hand_clock();
//!     let client = memory.client()?;
//!     let lease = client.lock("nightly").ttl(Duration::from_secs(30)).acquire().await?;
//!
//!     memory.advance(Duration::from_secs(40)); // this process was asleep all the while
//!     assert_eq!(lease.lost().await, Loss::Expired);
//!     assert_eq!(lease.state(), State::Lost(Loss::Expired));
//!     # Ok::<(), Box<dyn std::error::Error>>(())
//! })
//! # }
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use event_listener::Event;
use leasehold_core::model::{Handover, Tick};
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, ClockKind, Cursor, Drift, Ended,
    Error, ErrorKind, Hint, Left, Model, Modes, Moment, Page, PlaceKept, Profile, Queue, Record,
    Reentry, Renewed, ResourceName, Result, Route, Store, Token, Written, belief_end,
};

use crate::client::{Client, Options};
use crate::clock::{HandClock, SystemClock};
use crate::timer::After;

/// A store in memory. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Memory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    model: Mutex<Model>,
    clock: Arc<dyn Clock>,
    hand: Option<Arc<HandClock>>,
    profile: Profile,
    changed: Event,
    moves: Mutex<BTreeMap<ResourceName, u64>>,
    is_failing: AtomicBool,
    loses_replies: AtomicBool,
    is_held_back: AtomicBool,
    let_go: Event,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new()
    }
}

impl Memory {
    /// A store on the machine's own clock.
    pub fn new() -> Memory {
        Memory::build(Arc::new(SystemClock::new(ClockKind::Monotonic)), None)
    }

    /// A store and its clients on a clock that stands still until [`Memory::advance`].
    pub fn with_hand_clock() -> Memory {
        let hand = Arc::new(HandClock::new());
        let clock: Arc<dyn Clock> = Arc::clone(&hand) as Arc<dyn Clock>;
        Memory::build(clock, Some(hand))
    }

    fn build(clock: Arc<dyn Clock>, hand: Option<Arc<HandClock>>) -> Memory {
        let handover = Handover { first_term: Duration::MAX, push_min: Duration::ZERO };
        let inner = Inner {
            model: Mutex::new(Model::new(handover)),
            clock,
            hand,
            profile: profile(),
            changed: Event::new(),
            moves: Mutex::default(),
            is_failing: AtomicBool::new(false),
            loses_replies: AtomicBool::new(false),
            is_held_back: AtomicBool::new(false),
            let_go: Event::new(),
        };
        Memory { inner: Arc::new(inner) }
    }

    /// A client of this store, by its clock.
    ///
    /// # Errors
    ///
    /// If the operating system has no random numbers.
    pub fn client(&self) -> Result<Client> {
        let store: Arc<dyn Store> = Arc::new(self.clone());
        let clock = Arc::clone(&self.inner.clock);
        let client = Client::with_clock(store, clock, Options::default())?;
        if let Some(hand) = &self.inner.hand {
            hand.watch(&std::task::Waker::from(Arc::clone(client.shared().bell())));
        }
        Ok(client)
    }

    /// Moves a hand-set clock on; nothing on the machine's own.
    pub fn advance(&self, span: Duration) {
        if let Some(hand) = &self.inner.hand {
            hand.advance(span);
        }
        self.inner.changed.notify(usize::MAX);
    }

    /// From now on every call fails as unreachable, without effect; or no longer.
    pub fn fail_calls(&self, fail: bool) {
        self.inner.is_failing.store(fail, Ordering::SeqCst);
    }

    /// From now on every call takes effect and its reply is lost; or no longer.
    pub fn lose_replies(&self, lose: bool) {
        self.inner.loses_replies.store(lose, Ordering::SeqCst);
    }

    /// From now on every call waits until it is let go with `false`.
    pub fn hold_back(&self, hold: bool) {
        self.inner.is_held_back.store(hold, Ordering::SeqCst);
        if !hold {
            self.inner.let_go.notify(usize::MAX);
        }
    }

    /// The store forgets every claim on a name, as after a failover that lost them.
    ///
    /// # Errors
    ///
    /// If tokens are used up.
    pub fn forget(&self, name: &ResourceName) -> Result<()> {
        let at = self.tick();
        let mut model = self.model();
        let claims: Vec<_> = match model.resources.get(name) {
            Some(resource) => resource.entries.iter().map(|e| e.claim.id).collect(),
            None => Vec::new(),
        };
        for claim in claims {
            model.end(at, name, claim, Ended::Failover)?;
        }
        self.tell(&mut model);
        Ok(())
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.inner.model.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn tick(&self) -> Tick {
        let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let floor = u64::try_from(since_1970.as_micros()).unwrap_or_default();
        Tick { now: self.inner.clock.now(), floor }
    }

    /// Counts what the model has to say to waiters, and wakes them.
    fn tell(&self, model: &mut Model) {
        if model.hints.is_empty() {
            return;
        }
        let mut moves = self.inner.moves.lock().unwrap_or_else(|e| e.into_inner());
        for (name, _, _) in model.hints.drain(..) {
            *moves.entry(name).or_default() += 1;
        }
        drop(moves);
        self.inner.changed.notify(usize::MAX);
    }

    fn moved(&self, name: &ResourceName) -> Cursor {
        let moves = self.inner.moves.lock().unwrap_or_else(|e| e.into_inner());
        Cursor(moves.get(name).copied().unwrap_or_default())
    }

    /// Waits while calls are held back, and fails if they are to fail.
    async fn pass(&self, doing: &'static str) -> Result<()> {
        loop {
            let let_go = self.inner.let_go.listen();
            if !self.inner.is_held_back.load(Ordering::SeqCst) {
                break;
            }
            let_go.await;
        }
        if self.inner.is_failing.load(Ordering::SeqCst) {
            return Err(self.unreachable(doing));
        }
        Ok(())
    }

    fn unreachable(&self, doing: &'static str) -> Error {
        Error::new(ErrorKind::Unreachable, doing, "it was told to fail").at("memory:")
    }

    /// The answer, unless replies are to be lost.
    fn reply<T>(&self, doing: &'static str, answer: T) -> Result<T> {
        if self.inner.loses_replies.load(Ordering::SeqCst) {
            return Err(self.unreachable(doing).maybe_applied());
        }
        Ok(answer)
    }

    fn believed(&self, sent: Moment) -> impl FnOnce(Duration) -> Moment {
        let drift = self.inner.profile.drift;
        move |left| belief_end(sent, left, drift)
    }
}

fn profile() -> Profile {
    Profile {
        name: "memory",
        url: "memory:".into(),
        clock: ClockKind::Monotonic,
        drift: Drift::None,
        clock_hazards: &[],
        fair: true,
        queues: true,
        sees_death: false,
        place: PlaceKept::Watched,
        reentry: Reentry::Store,
        modes: Modes::ALL,
        term_bounds: (Duration::from_millis(50), Duration::from_secs(24 * 3600)),
        transferable: true,
        polls_anywhere: true,
        remote: false,
        token_hazards: &["tokens end with the process"],
        limits: &["it is seen by one process only", "it is for tests"],
    }
}

#[async_trait]
impl Store for Memory {
    fn profile(&self) -> &Profile {
        &self.inner.profile
    }

    fn route(&self, _resource: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let doing = "enter the queue";
        let sent = self.inner.clock.now();
        self.pass(doing).await?;
        let (shortest, longest) = self.inner.profile.term_bounds;
        if claim.term < shortest || claim.term > longest {
            let detail = format!(
                "a term of {:?} is out of bounds: want {shortest:?} to {longest:?}",
                claim.term
            );
            return Err(Error::new(ErrorKind::Usage, doing, detail).on(&claim.resource));
        }
        let answer = {
            let mut model = self.model();
            let answer = model.enter(self.tick(), claim);
            self.tell(&mut model);
            answer.map_err(|e| e.at("memory:"))?
        };
        self.reply(doing, answer.map_until(self.believed(sent)))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let doing = "renew a lease";
        let sent = self.inner.clock.now();
        if let Err(error) = self.pass(doing).await {
            return vec![Renewed::Unknown(error); claims.len()];
        }
        let mut model = self.model();
        let at = self.tick();
        let renewed = claims.iter().map(|claim| {
            let renewed = model.renew(at, claim).map_until(self.believed(sent));
            self.reply(doing, renewed).unwrap_or_else(Renewed::Unknown)
        });
        let renewed = renewed.collect();
        self.tell(&mut model);
        renewed
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let doing = "leave";
        self.pass(doing).await?;
        let left = {
            let mut model = self.model();
            let left = model.leave(self.tick(), claim);
            self.tell(&mut model);
            left?
        };
        self.reply(doing, left)
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        _claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let end = self.inner.clock.now() + at_most;
        loop {
            let changed = self.inner.changed.listen();
            let moved = self.moved(resource);
            if moved > since || self.inner.clock.now() >= end {
                return Ok(Hint::Moved(moved));
            }
            match self.inner.hand {
                Some(_) => changed.await,
                None => {
                    let left = end.since(self.inner.clock.now());
                    futures_lite::future::or(changed, After::new(left)).await;
                }
            }
        }
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        self.pass("inspect").await?;
        Ok(self.model().inspect(self.tick(), resource))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.pass("list names").await?;
        Ok(self.model().list(page))
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let doing = "write a record";
        self.pass(doing).await?;
        let written = self.model().write(self.tick(), claim, value, keep)?;
        self.reply(doing, written)
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        self.pass("read a record").await?;
        Ok(self.model().read(self.tick(), resource))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let doing = "break a grant";
        self.pass(doing).await?;
        let broken = {
            let mut model = self.model();
            let broken = model.break_(self.tick(), resource, expect, now)?;
            self.tell(&mut model);
            broken
        };
        self.reply(doing, broken)
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let doing = "clean names";
        self.pass(doing).await?;
        let cleaned = self.model().clean(self.tick(), keep, page, dry);
        self.reply(doing, cleaned)
    }

    async fn disturbed(&self, _since: Cursor) -> Cursor {
        std::future::pending().await
    }

    async fn close(&self) {}
}
