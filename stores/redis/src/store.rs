//! The store: each verb is one script.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use event_listener::Event;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, ClockKind, Cursor, Ended, Epoch,
    Error, ErrorKind, Hint, Left, Modes, Moment, Page, PlaceKept, Profile, Queue, Record, Reentry,
    Renewed, ResourceName, Result, Route, Store, Token, Written, belief_end,
};
use leasehold_net::{BootClock, Io, ServerClock, Skew};

use crate::config::{Durability, Layout, RedisConfig, Servers};
use crate::hub::Hub;
use crate::keys::Keys;
use crate::link::{Cause, Lane, Link, Script};
use crate::told::{DOING, Told};
use crate::usual::Crowds;

/// The shortest term: belief in a shorter one would be eaten by its margins.
pub(crate) const TERM_MIN: Duration = Duration::from_millis(50);
/// The longest term.
pub(crate) const TERM_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How often a waiter says that it lives, and how long its place lasts after that.
const HEARTBEAT: Duration = Duration::from_secs(1);
const PLACE_TERM: Duration = Duration::from_secs(3);
/// For how long ours keep out of a lock that was announced to foreign clients.
const DOOR: Duration = Duration::from_millis(10);
/// What is noted of claims that hold, before those that must have ended are forgotten.
const SEEN_ROOM: usize = 4096;

/// The store over Redis. See the [crate's documentation](crate) for what it promises.
pub struct RedisStore {
    config: RedisConfig,
    profile: Profile,
    io: Io,
    link: Link,
    hub: Arc<Hub>,
    /// First term, shortest pushed term, and for how long the door is kept, for scripts.
    spans: Vec<u8>,
    clock: ServerClock,
    /// Steps of the server's clock, counted, and word of them.
    steps: AtomicU64,
    stepped: Event,
    seen: Mutex<HashMap<ClaimId, Seen>>,
    crowds: Crowds,
    server_us: AtomicU64,
}

/// The last answer that vouched for a grant.
#[derive(Debug, Clone, Copy)]
struct Seen {
    sent: Moment,
    left: Duration,
    epoch: u64,
    /// Whether it may be the one claim of a lock that nobody waits for.
    sole: bool,
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.profile.url).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Reaches the server, and checks that it can be used. What cannot be reached is tried again
    /// until `connect_within` is over. The future may be polled by any executor.
    ///
    /// # Errors
    ///
    /// `Unreachable`; `Permission` for credentials, commands, keys or channels that are refused;
    /// `Config` for a server that is too old or lacks scripts, or a configuration that does not fit
    /// it.
    pub async fn connect(config: RedisConfig) -> Result<RedisStore> {
        crate::open::connect(config).await
    }

    pub(crate) fn new(config: RedisConfig, io: Io, link: Link, hub: Arc<Hub>) -> RedisStore {
        let (first, shortest) = (config.first_term.as_micros(), config.push_min.as_micros());
        RedisStore {
            spans: format!("{first} {shortest} {}", DOOR.as_micros()).into_bytes(),
            profile: profile(&config),
            config,
            io,
            link,
            hub,
            clock: ServerClock::new(),
            steps: AtomicU64::new(0),
            stepped: Event::new(),
            seen: Mutex::default(),
            crowds: Crowds::new(),
            server_us: AtomicU64::new(0),
        }
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// How many channels the server was told that this store listens on.
    pub fn subscriptions(&self) -> usize {
        self.link.subscriptions()
    }

    /// The server's time in the last answer, in microseconds since 1970; for tests.
    #[doc(hidden)]
    pub fn server_us(&self) -> u64 {
        self.server_us.load(Ordering::SeqCst)
    }

    pub(crate) fn layout(&self) -> Layout {
        self.config.layout
    }

    pub(crate) fn durability(&self) -> Durability {
        self.config.durability
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn crowds(&self) -> &Crowds {
        &self.crowds
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The keys of a resource, if they can be used here.
    pub(crate) fn keys(&self, name: &ResourceName) -> Result<Keys> {
        let keys = Keys::of(self.layout(), name);
        if self.link.facts().cluster {
            keys.check_slots(name)?;
        }
        Ok(keys)
    }

    /// What every deciding script is told first.
    pub(crate) fn common(&self) -> [&[u8]; 3] {
        [self.layout().letter(), self.link.publish_word().as_bytes(), &self.spans]
    }

    /// Runs a script on one resource.
    pub(crate) async fn tell(
        &self,
        lane: Lane,
        script: &'static Script,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Told> {
        let answer = self.link.call(lane, script, keys, args).await?;
        self.read(Told::read(answer)?)
    }

    /// Takes the server's time out of an answer.
    pub(crate) fn read(&self, told: Told) -> Result<Told> {
        self.server_us.store(told.server_us, Ordering::SeqCst);
        let tolerated = Duration::from_millis(250);
        let skew = self.clock.observe(told.sent, told.received, told.server_us, tolerated);
        if skew != Skew::Steady {
            tracing::warn!(target: "leasehold", ?skew, "the server's clock has stepped");
            self.steps.fetch_add(1, Ordering::SeqCst);
            self.stepped.notify(usize::MAX);
        }
        Ok(told)
    }

    /// When belief ends in what an answer left.
    pub(crate) fn believed(&self, told: &Told, left: Duration) -> Moment {
        belief_end(told.sent, left, self.config.drift)
    }

    /// Notes that a grant was vouched for.
    pub(crate) fn vouched(&self, claim: ClaimId, told: &Told, left: Duration) {
        let sole = self.is_sole(claim);
        self.vouched_as(claim, told, left, sole);
    }

    /// The same, and whether it may be the one claim of a lock that nobody waits for.
    pub(crate) fn vouched_as(&self, claim: ClaimId, told: &Told, left: Duration, sole: bool) {
        let seen = Seen { sent: told.sent, left, epoch: told.epoch, sole };
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SEEN_ROOM && all.len() == all.capacity() {
            let now = BootClock.now();
            all.retain(|_, seen| seen.sent + seen.left * 2 > now);
        }
        all.insert(claim, seen);
    }

    pub(crate) fn is_sole(&self, claim: ClaimId) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(&claim).is_some_and(|seen| seen.sole)
    }

    /// It is not the one claim of a lock that nobody waits for.
    pub(crate) fn not_sole(&self, claim: ClaimId) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = seen.get_mut(&claim) {
            seen.sole = false;
        }
    }

    pub(crate) fn unsee(&self, claim: ClaimId) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&claim);
    }

    /// Why a claim is gone, as far as this side knows more than the script.
    pub(crate) fn why(&self, claim: ClaimId, keys: &Keys, told: &Told, how: Ended) -> Ended {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(&claim);
        let Some(seen) = seen else { return how };
        match how {
            // By our clock its term is not over, so the server's has gained on it.
            Ended::Expired if told.received.since(seen.sent) < seen.left * 4 / 5 => Ended::Clock,
            Ended::Unknown | Ended::Evicted => {
                match self.link.cause_since(keys.lock(), seen.epoch) {
                    Some(Cause::Restarted | Cause::Failover) => Ended::Failover,
                    _ => how,
                }
            }
            how => how,
        }
    }

    /// Refuses a term that the profile does not take.
    pub(crate) fn check_term(name: &ResourceName, term: Duration) -> Result<()> {
        if (TERM_MIN..=TERM_MAX).contains(&term) {
            return Ok(());
        }
        let detail = format!("the term {term:?} is out of bounds: want {TERM_MIN:?} to 366 days");
        Err(Error::new(ErrorKind::Usage, DOING, detail).on(name))
    }

    fn named(&self, error: Error) -> Error {
        error.at(self.profile.url.as_str())
    }
}

pub(crate) fn micros(span: Duration) -> Vec<u8> {
    span.as_micros().to_string().into_bytes()
}

const FAILOVER: &str = "a failover may lose a grant that was not replicated: two then hold, and \
                        only the fence tells them apart";
const EVICTION: &str = "an eviction policy other than noeviction may evict locks";
const BRACES: &str = "names whose braces would put the keys of one resource into different slots \
                      are refused";
const MOVES: &str = "while a slot is on its way to another node, the resources in it answer that \
                     they are unavailable";

fn profile(config: &RedisConfig) -> Profile {
    Profile {
        name: "redis",
        url: config.url(),
        clock: ClockKind::Boot,
        drift: config.drift,
        clock_hazards: &[
            "the server's wall clock is set forward: terms end early",
            "a replica whose clock is ahead is promoted",
        ],
        fair: true,
        queues: true,
        sees_death: false,
        place: PlaceKept::Heartbeat { every: HEARTBEAT, term: PLACE_TERM },
        reentry: Reentry::Store,
        modes: Modes::ALL,
        term_bounds: (TERM_MIN, TERM_MAX),
        transferable: true,
        polls_anywhere: true,
        remote: true,
        token_hazards: &[
            "a counter is lost (eviction, failover, restart without persistence) and a clock that \
             minted was ahead by more than the time until the next grant",
        ],
        limits: match config.servers {
            Servers::Cluster(_) => &[FAILOVER, EVICTION, BRACES, MOVES],
            _ => &[FAILOVER, EVICTION],
        },
    }
}

#[async_trait]
impl Store for RedisStore {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, resource: &ResourceName) -> Route {
        self.link.route(resource.as_str().as_bytes())
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let entered = crate::enter::enter(self, claim).await;
        entered.map_err(|e| self.named(e.while_doing("enter the queue").on(&claim.resource)))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let renewed = crate::renew::renew(self, claims).await;
        let named = |answer| match answer {
            Renewed::Unknown(error) => Renewed::Unknown(self.named(error.while_doing("renew"))),
            answer => answer,
        };
        renewed.into_iter().map(named).collect()
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let left = crate::leave::leave(self, claim).await;
        left.map_err(|e| self.named(e.while_doing("leave").on(&claim.resource)))
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let hint = self.hub.changed(&self.io, resource, claim, since, at_most).await;
        hint.map_err(|e| self.named(e.on(resource)))
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        let seen = crate::inspect::inspect(self, resource).await;
        seen.map_err(|e| self.named(e.while_doing("inspect").on(resource)))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        crate::list::list(self, page).await.map_err(|e| self.named(e.while_doing("list names")))
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let written = crate::write::write(self, claim, value, keep).await;
        written.map_err(|e| self.named(e.while_doing("write a record").on(&claim.resource)))
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        let read = crate::read::read(self, resource).await;
        read.map_err(|e| self.named(e.while_doing("read a record").on(resource)))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let broken = crate::break_::break_(self, resource, expect, now).await;
        broken.map_err(|e| self.named(e.while_doing("break a grant").on(resource)))
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let cleaned = crate::clean::clean(self, keep, page, dry).await;
        cleaned.map_err(|e| self.named(e.while_doing("clean names")))
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        loop {
            let stepped = self.stepped.listen();
            let steps = self.steps.load(Ordering::SeqCst);
            let now = Cursor(self.link.epoch() + steps);
            if now > since {
                return now;
            }
            let link = self.link.epoch();
            futures_lite::future::or(
                async {
                    self.link.disturbed(link).await;
                },
                stepped,
            )
            .await;
        }
    }

    async fn close(&self) {
        self.hub.close();
        self.link.close().await;
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.hub.close();
    }
}
