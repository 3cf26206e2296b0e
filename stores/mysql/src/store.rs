//! The store: its promises, its connections, and the verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, ClockKind, Cursor, Epoch, Error,
    ErrorKind, Hint, Left, Modes, Page, PlaceKept, Profile, Queue, Record, Reentry, Renewed,
    ResourceName, Result, Route, Store, Token, Written,
};
use leasehold_net::Io;

use crate::back::Back;
use crate::config::MysqlConfig;
use crate::core::Core;
use crate::error::made;
use crate::lanes::Lanes;
use crate::now::Clocks;
use crate::server::PRINTED;

/// The shortest term: a shorter one would be eaten by round trips and the margin of belief.
const TERM_MIN: Duration = Duration::from_millis(100);
/// The longest term.
const TERM_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How often a waiter says that it lives, and for how long its place is kept after.
const PLACE: PlaceKept =
    PlaceKept::Heartbeat { every: Duration::from_secs(1), term: Duration::from_secs(3) };

/// The store in a MySQL or MariaDB database. See the [crate's documentation](crate) for what it
/// promises.
#[derive(Debug)]
pub struct MysqlStore {
    profile: Profile,
    epoch: Epoch,
    pub(crate) core: Arc<Core>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) back: Arc<Back>,
}

impl MysqlStore {
    /// Reaches the server, looks whether it is fit, and makes the tables where they are missing.
    ///
    /// The connections live on a thread of the store's own, so this future and those of all verbs
    /// may be polled anywhere. A lost connection is made again by itself.
    ///
    /// # Errors
    ///
    /// `Unreachable` or `Unavailable` if no server that can be written answers within
    /// [`connect_within`](MysqlConfig::connect_within); `Config` for an unfit server, database or
    /// configuration, `Permission`, `Version` or `Corrupt` for tables that are not as they should
    /// be.
    pub async fn connect(config: MysqlConfig) -> Result<MysqlStore> {
        MysqlStore::connect_on(config, Clocks::default()).await
    }

    /// As [`MysqlStore::connect`], by other clocks, for tests.
    ///
    /// # Errors
    ///
    /// As [`MysqlStore::connect`].
    #[doc(hidden)]
    pub async fn connect_on(config: MysqlConfig, clocks: Clocks) -> Result<MysqlStore> {
        let named = |e: Error| e.while_doing("open the store").at(config.url());
        let io = Io::start("leasehold-mysql").map_err(named)?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|e| {
            named(made(ErrorKind::Unavailable, format!("the system gives no random bits: {e}")))
        })?;
        let core = Core::new(config.clone(), clocks, io.clone(), u64::from_ne_bytes(seed));
        let core = Arc::new(core.map_err(named)?);
        let dialling = Arc::clone(&core);
        let reach = async move { reach(&dialling).await };
        let first = io.on_back("open the store", reach).await.and_then(|first| first);
        let first = first.map_err(named)?;
        let profile = profile(&config, first.server.durable);
        let lanes = Lanes::start(Arc::clone(&core), first);
        let back = Back::start(Arc::clone(&core));
        if let Some(wake) = &core.wake {
            core.io.back().spawn(Arc::clone(wake).keep(Arc::clone(&core)));
        }
        Ok(MysqlStore { profile, epoch: config.epoch, core, lanes, back })
    }

    /// The statements that make the tables, or bring those of an older version to this one, to be run
    /// by whoever may.
    pub const fn schema_sql() -> &'static str {
        PRINTED
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Names the store in an error, and what was being done.
    pub(crate) fn named(&self, doing: &'static str) -> impl Fn(Error) -> Error + '_ {
        move |error| error.while_doing(doing).at(self.core.url.as_str())
    }

    /// Refuses a term out of bounds.
    pub(crate) fn check_term(resource: &ResourceName, term: Duration) -> Result<()> {
        if (TERM_MIN..=TERM_MAX).contains(&term) {
            return Ok(());
        }
        let detail = format!("its term is {term:?}: want 100 ms to 366 days");
        Err(made(ErrorKind::Usage, detail).on(resource))
    }
}

/// Tries to reach a server for as long as the configuration says.
async fn reach(core: &Core) -> Result<crate::session::Session> {
    let end = tokio::time::Instant::now() + core.config.connect_within;
    let mut backoff = core.backoff(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let error = match core.dial().await {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let wait = backoff.next_wait();
        if !error.kind().is_transient() || tokio::time::Instant::now() + wait >= end {
            return Err(error);
        }
        tokio::time::sleep(wait).await;
    }
}

fn profile(config: &MysqlConfig, durable: bool) -> Profile {
    Profile {
        name: "mysql",
        url: config.url(),
        clock: ClockKind::Boot,
        drift: config.drift,
        clock_hazards: &[
            "terms are judged by the wall clock of the server: a step forward ends them early, \
             another server that takes over may be ahead",
        ],
        fair: true,
        queues: true,
        sees_death: false,
        place: PLACE,
        reentry: Reentry::Store,
        modes: Modes::ALL,
        term_bounds: (TERM_MIN, TERM_MAX),
        transferable: true,
        polls_anywhere: true,
        remote: true,
        token_hazards: &[
            "where rows are lost (a restore, a replica that takes over), tokens go on from the \
             server's wall clock: they rise if no clock that minted was ahead of it",
        ],
        limits: if durable { &[WAKING, REPLICA] } else { &[WAKING, REPLICA, NOT_DURABLE] },
    }
}

const WAKING: &str =
    "a waiter of another process is woken by a poll, at most 0.2 s after its grant";
const REPLICA: &str = "replication is not waited for: a replica that takes over may not know the \
    newest grants";
const NOT_DURABLE: &str = "the server does not sync each commit: a crash of its machine may undo \
    the newest grants";

impl MysqlStore {
    fn end(&self) {
        self.lanes.close();
        self.core.hub.close();
        if let Some(wake) = &self.core.wake {
            wake.close();
        }
    }
}

impl Drop for MysqlStore {
    fn drop(&mut self) {
        self.end();
    }
}

#[async_trait]
impl Store for MysqlStore {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, _: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        crate::enter::enter(self, claim).await.map_err(self.named("enter the queue"))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        crate::renew::renew(self, claims).await
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        crate::leave::leave(self, claim).await.map_err(self.named("leave"))
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        let hub = &self.core.hub;
        let hint = hub.changed(&self.core.io, resource, claim, since, at_most).await;
        hint.map_err(self.named("wait for a change"))
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        crate::inspect::inspect(self, resource).await.map_err(self.named("inspect"))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        crate::list::list(self, page).await.map_err(self.named("list names"))
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        let written = crate::write::write(self, claim, value, keep).await;
        written.map_err(self.named("write a record"))
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        crate::read::read(self, resource).await.map_err(self.named("read a record"))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        let broken = crate::break_::break_(self, resource, expect, now).await;
        broken.map_err(self.named("break a grant"))
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        crate::clean::clean(self, keep, page, dry).await.map_err(self.named("clean names"))
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.core.hub.disturbed(since).await
    }

    async fn close(&self) {
        self.end();
    }
}
