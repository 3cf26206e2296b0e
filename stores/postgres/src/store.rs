//! The store: what all verbs share, and how it begins and ends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Backoff, Broken, Claim, ClaimId, ClaimRef, Cleaned, Clock, ClockKind, Cursor, Drift,
    Epoch, Error, ErrorKind, Hint, Left, Modes, Moment, Page, PlaceKept, Profile, Queue, Record,
    Reentry, Renewed, ResourceName, Result, Route, Store, Token, Written, belief_end,
};
use leasehold_net::{BootClock, Io, ServerClock};

use crate::config::{Listen, PostgresConfig};
use crate::connect::{Connector, Opened};
use crate::error::DOING;
use crate::hub::Hub;
use crate::line::Line;
use crate::listen::{Listener, Poller, proven};
use crate::schema;

/// The shortest term: belief in a shorter one would be eaten by its margins.
const TERM_MIN: Duration = Duration::from_millis(200);
/// The longest term.
const TERM_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How often a waiter says that it lives, and how long its place lasts after that.
const HEARTBEAT: Duration = Duration::from_secs(1);
const PLACE_TERM: Duration = Duration::from_secs(3);

pub(crate) const DOING_RENEW: &str = "renew the lease";

/// The store over PostgreSQL. See the [crate's documentation](crate) for what it promises.
#[derive(Debug)]
pub struct PostgresStore {
    config: PostgresConfig,
    profile: Profile,
    io: Io,
    connector: Arc<Connector>,
    hub: Arc<Hub>,
    clock: Arc<ServerClock>,
    front: Arc<Line>,
    back: Arc<Line>,
    /// Whom to notify: this process's own channel.
    home: i64,
}

/// What is found out at the start.
struct Begun {
    opened: Opened,
    listens: bool,
}

impl PostgresStore {
    /// Reaches the server that may be written to, and sees that its tables are there; makes them
    /// where they are missing and this role may. What cannot be reached is tried again until
    /// `connect_within` is over. The future may be polled by any executor; within a tokio runtime,
    /// calls of this store are answered there, renewals always on a thread of the store's own.
    ///
    /// # Errors
    ///
    /// `Unreachable` or `Unavailable` for servers that are down, standbys or read-only;
    /// `Permission` for credentials, and for missing tables that this role may not make; `Config`
    /// for a database that is not there or TLS that does not fit; `Version` for tables of another
    /// version; `Corrupt` for tables that were altered.
    pub async fn connect(config: PostgresConfig) -> Result<PostgresStore> {
        let url = config.url();
        let named = |e: Error| e.at(url.as_str()).while_doing("open the store");
        let io = Io::start("leasehold-postgres").map_err(named)?;
        let hub = Arc::new(Hub::default());
        let connector = Arc::new(Connector::new(&config, Arc::clone(&hub)).map_err(named)?);
        let home = random_home().map_err(named)?;
        let begun = {
            let (connector, config) = (Arc::clone(&connector), config.clone());
            let begin = async move { begin(&connector, &config, home).await };
            io.on_front("open the store", begin).await.and_then(|begun| begun).map_err(named)?
        };
        let clock = Arc::new(ServerClock::new());
        let line = |home| Line::new(&connector, &hub, &clock, home, io.back());
        let (front, back) = (line(io.front()), line(io.back()));
        front.start_with(begun.opened);
        let store = PostgresStore {
            profile: profile(&config, begun.listens),
            config,
            io,
            connector,
            hub,
            clock,
            front,
            back,
            home,
        };
        store.watch(begun.listens);
        Ok(store)
    }

    /// The SQL that makes the tables and functions in this schema, to be run by its owner where the
    /// application's role may not; with the rights which that role needs as comments.
    pub fn schema_sql(schema: &str) -> String {
        schema::printed(schema)
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// Starts what hears of hand-overs.
    fn watch(&self, listens: bool) {
        let hears = Arc::new(AtomicBool::new(false));
        if listens {
            let listener = Listener {
                connector: Arc::clone(&self.connector),
                hub: Arc::clone(&self.hub),
                home: self.home,
                hears: Arc::clone(&hears),
            };
            self.io.back().spawn(listener.run());
        }
        let poller = Poller {
            line: Arc::clone(&self.back),
            hub: Arc::clone(&self.hub),
            hears,
            schema: self.config.schema.clone(),
        };
        self.io.back().spawn(poller.run());
    }

    pub(crate) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The line of requests.
    pub(crate) fn front(&self) -> &Arc<Line> {
        &self.front
    }

    /// The line of renewals; that of requests where the server has no room for another.
    pub(crate) fn back(&self) -> &Arc<Line> {
        if self.back.is_down() && !self.front.is_down() { &self.front } else { &self.back }
    }

    pub(crate) fn clock(&self) -> &ServerClock {
        &self.clock
    }

    pub(crate) fn drift(&self) -> Drift {
        self.config.drift
    }

    pub(crate) fn home(&self) -> i64 {
        self.home
    }

    pub(crate) fn promotions(&self) -> u32 {
        self.connector.promotions()
    }

    /// The line of renewals is connected before the first one is due.
    pub(crate) fn ready_to_renew(&self) {
        self.back.start();
    }

    /// Waits on the store's own thread.
    pub(crate) async fn pause(&self, span: Duration) {
        let sleep = {
            let _guard = self.io.back().enter();
            tokio::time::sleep(span)
        };
        sleep.await;
    }

    pub(crate) fn expect(&self, claim: &Claim) {
        self.hub.expect(claim.id, &claim.resource);
    }

    pub(crate) fn believed(&self, sent: Moment, left: Duration) -> Moment {
        belief_end(sent, left, self.config.drift)
    }

    pub(crate) fn schema(&self) -> &str {
        &self.config.schema
    }

    /// A call that is about no name in particular goes by this one.
    pub(crate) fn any_name(&self) -> ResourceName {
        match ResourceName::new("-") {
            Ok(name) => name,
            Err(bad) => unreachable!("{bad}"),
        }
    }

    pub(crate) fn named(&self, error: Error) -> Error {
        error.at(self.profile.url.as_str())
    }

    pub(crate) fn check(&self, claim: &Claim) -> Result<()> {
        self.check_term(&claim.resource, claim.term)?;
        if !claim.mode.is_valid() {
            let detail = "permits must be at least 1 and fit their limit";
            return Err(Error::new(ErrorKind::Usage, DOING, detail).on(&claim.resource));
        }
        Ok(())
    }

    pub(crate) fn check_term(&self, resource: &ResourceName, term: Duration) -> Result<()> {
        if term < TERM_MIN || term > TERM_MAX {
            let detail = format!("the term {term:?} is out of bounds: want 200 ms to 366 days");
            return Err(Error::new(ErrorKind::Usage, DOING, detail).on(resource));
        }
        Ok(())
    }

    fn told(&self, doing: &'static str, resource: &ResourceName) -> impl Fn(Error) -> Error {
        let url = self.profile.url.clone();
        let resource = resource.clone();
        move |error| error.at(url.as_str()).on(&resource).while_doing(doing)
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        self.front.close();
        self.back.close();
    }
}

/// A read in the configured schema.
pub(crate) fn statement(store: &PostgresStore, sql: &str) -> String {
    sql.replace("public.", &format!("{}.", schema::quote(store.schema())))
}

/// A span in whole microseconds, as the server counts them.
pub(crate) fn micros(span: Duration) -> i64 {
    // Some 292,000 years are for ever; half of that leaves room to add.
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 2)
}

async fn begin(connector: &Connector, config: &PostgresConfig, home: i64) -> Result<Begun> {
    let seed = home.cast_unsigned();
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500), seed);
    let end = BootClock.now() + config.connect_within;
    let mut opened = loop {
        match connector.open().await {
            Ok(opened) => break opened,
            Err(error) if error.kind().is_transient() && BootClock.now() < end => {
                tokio::time::sleep(backoff.next_wait()).await;
            }
            Err(error) => return Err(error),
        }
    };
    let listens = match &config.listen {
        Listen::Never => false,
        Listen::Direct { .. } => true,
        Listen::Auto if opened.direct => true,
        Listen::Auto => {
            let listens = listens(connector, &mut opened, home).await;
            // A notification that nobody waited for came through: nothing lends this session. (Of a
            // later one that is not known: what stands between may be another by then.)
            opened.kept |= listens;
            listens
        }
    };
    Ok(Begun { opened, listens })
}

/// Whether notifications get through what stands between.
async fn listens(connector: &Connector, opened: &mut Opened, home: i64) -> bool {
    let Ok(mut listener) = connector.open_listener().await else { return false };
    proven(&mut listener, opened, home).await
}

fn random_home() -> Result<i64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| {
        let detail = "the system gives no random numbers";
        Error::new(ErrorKind::Unavailable, DOING, detail).caused_by(std::io::Error::from(e))
    })?;
    Ok(i64::from_le_bytes(bytes))
}

fn profile(config: &PostgresConfig, listens: bool) -> Profile {
    const PUSHED: &[&str] = &[
        "the death of a holder is seen when its term ends",
        "a commit that the server acknowledged is lost when an asynchronous standby takes over",
    ];
    const POLLED: &[&str] = &[
        "a pooler stands between: waiters look for a hand-over, within a quarter of a second; name \
         a direct connection with ?listen= to be told at once",
        "the death of a holder is seen when its term ends",
        "a commit that the server acknowledged is lost when an asynchronous standby takes over",
    ];
    Profile {
        name: "postgres",
        url: config.url(),
        clock: ClockKind::Boot,
        drift: config.drift,
        clock_hazards: &[
            "the server's wall clock judges terms: set forward, it ends them early; set back, late",
            "a standby that takes over judges by its own clock",
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
            "after a lost commit or a restore, tokens rise only if no server that minted had its \
             clock ahead of the next by more than the time between the two grants; raise the epoch \
             after a restore",
        ],
        limits: if listens { PUSHED } else { POLLED },
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, _resource: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let told = self.told("enter the queue", &claim.resource);
        crate::enter::enter(self, claim).await.map_err(told)
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        crate::renew::renew(self, claims).await
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let told = self.told("leave", &claim.resource);
        crate::leave::leave(self, claim).await.map_err(told)
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        Ok(self.hub.changed(self.io.back(), resource, claim, since, at_most).await)
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        let told = self.told("inspect the queue", resource);
        crate::inspect::inspect(self, resource).await.map_err(told)
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        let told = |e: Error| self.named(e).while_doing("list names");
        crate::list::list(self, page).await.map_err(told)
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let told = self.told("write a record", &claim.resource);
        crate::write::write(self, claim, value, keep).await.map_err(told)
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        let told = self.told("read a record", resource);
        crate::read::read(self, resource).await.map_err(told)
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let told = self.told("break a claim", resource);
        crate::break_::break_(self, resource, expect, now).await.map_err(told)
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        let told = |e: Error| self.named(e).while_doing("clean names");
        crate::clean::clean(self, keep, page, dry).await.map_err(told)
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.hub.disturbed(since).await
    }

    async fn close(&self) {
        self.front.close();
        self.back.close();
    }
}
