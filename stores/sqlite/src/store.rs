//! The store: one connection, tried once a verb, never waited for while blocking.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold_core::{
    Admission, Backoff, Broken, Claim, ClaimId, ClaimRef, Cleaned, ClockKind, Cursor, Drift, Epoch,
    Error, ErrorKind, Hint, Left, Modes, Moment, Page, PlaceKept, Profile, Queue, Record, Reentry,
    Renewed, ResourceName, Result, Route, Store, Token, Written, belief_end,
};
use rusqlite::Connection;

use crate::config::SqliteConfig;
use crate::error::{DOING, Fail, Step, from_io, from_sqlite};
use crate::files::{Watched, beside};
use crate::hub::Hub;
use crate::live::{Home, Liveness};
use crate::log::Log;
use crate::machine::Machine;
use crate::message::Word;
use crate::open;
use crate::tx::{Tokens, Tx};

/// The shortest term: belief in a shorter one would be eaten by its margin.
pub(crate) const TERM_MIN: Duration = Duration::from_millis(50);
/// The longest term.
pub(crate) const TERM_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

/// The embedded store. See the [crate's documentation](crate) for what it promises.
#[derive(Debug)]
pub struct SqliteStore {
    config: SqliteConfig,
    profile: Profile,
    machine: Machine,
    live: Arc<Liveness>,
    hub: Arc<Hub>,
    watched: Watched,
    db: Mutex<Option<Db>>,
    /// The process that opened it.
    pid: u32,
}

#[derive(Debug)]
struct Db {
    connection: Connection,
    path: PathBuf,
    tokens: Tokens,
    log: Log,
}

/// How often a busy database is tried again at once: most transactions are over in microseconds.
const TRIES_AT_ONCE: u32 = 3;

/// How a verb's transaction begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

impl SqliteStore {
    /// Opens the store, and makes it if there is none yet. Does not block for long: it reads a few
    /// small files.
    ///
    /// ```
    /// use leasehold_core::Store;
    /// use leasehold_sqlite::{SqliteConfig, SqliteStore};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("locks.db");
    /// let store = SqliteStore::open(SqliteConfig::new(path))?;
    /// assert_eq!(store.profile().name, "sqlite");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Config` for a place where it cannot be, `Permission`, `Corrupt`, `Version` for a database
    /// of a newer leasehold, `Unavailable` for one that is full, read-only or being written by
    /// another program all the time.
    pub fn open(config: SqliteConfig) -> Result<SqliteStore> {
        let machine = Machine::local()?;
        SqliteStore::open_on(config, machine)
    }

    /// Opens the store with other clocks or another boot than this machine's, for tests.
    ///
    /// # Errors
    ///
    /// As [`SqliteStore::open`].
    pub fn open_on(mut config: SqliteConfig, machine: Machine) -> Result<SqliteStore> {
        // The program may change its directory later.
        config.path = std::path::absolute(&config.path)
            .map_err(|e| from_io(ErrorKind::Config, "its path cannot be made absolute", e))?;
        let url = config.url();
        let named = |e: Error| e.at(url.as_str());
        let opened = open::open(&config, &machine).map_err(named)?;
        let (path, share) = (opened.prepared.path, opened.prepared.share);
        let live = Liveness::open(&beside(&path, "-live"), share).map_err(named)?;
        let live = Arc::new(live);
        let hub = Hub::new(Arc::clone(&live), machine.clone(), beside(&path, "-wake"), share);
        let (connection, tokens) = (opened.connection, opened.tokens);
        let log = sqlite(Log::of(&connection, path.clone())).map_err(named)?;
        let db = Db { connection, path, tokens, log };
        Ok(SqliteStore {
            profile: profile(url.clone()),
            config,
            machine,
            live,
            hub,
            watched: opened.watched,
            db: Mutex::new(Some(db)),
            pid: std::process::id(),
        })
    }

    /// The epoch that the configuration gives to the tokens of this store.
    pub fn epoch(&self) -> Epoch {
        self.config.epoch
    }

    /// What the store reads of the machine: its clock is the one on which `until` is told.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The descriptor that keeps this process's claims of [`Life::Process`] alive: they die when
    /// the last process that has a copy of it ends or closes it.
    ///
    /// Closed on exec unless a copy is made that is not; what a command starts then keeps the lock.
    ///
    /// [`Life::Process`]: leasehold_core::Life::Process
    pub fn liveness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.live.fd())
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Decides in one write transaction; `step` may run more than once.
    pub(crate) async fn decide<T>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Step<T>,
    ) -> Result<(Moment, T)> {
        self.run(Kind::Write, step).await
    }

    /// Reads in one transaction, from one snapshot.
    pub(crate) async fn look<T>(
        &self,
        step: impl FnMut(&mut Tx<'_>) -> Step<T>,
    ) -> Result<(Moment, T)> {
        self.run(Kind::Read, step).await
    }

    /// The moment before the transaction that did it, on the local clock, and what it answered.
    async fn run<T>(
        &self,
        kind: Kind,
        mut step: impl FnMut(&mut Tx<'_>) -> Step<T>,
    ) -> Result<(Moment, T)> {
        let named = |e: Error| e.at(self.profile.url.as_str());
        let mut since: Option<(Instant, Backoff)> = None;
        let mut tries = 0;
        self.check_process().map_err(named)?;
        self.watched.check().map_err(named)?;
        loop {
            if let Some(done) = self.attempt(kind, &mut step).map_err(named)? {
                return Ok(done);
            }
            tries += 1;
            if tries <= TRIES_AT_ONCE {
                std::thread::yield_now();
                continue;
            }
            let (started, backoff) = since.get_or_insert_with(|| {
                let (first, cap) = (Duration::from_micros(100), Duration::from_millis(5));
                let now = Instant::now();
                let seed = self.live.home().byte ^ self.machine.clock.now().as_nanos();
                (now, Backoff::new(first, cap, seed))
            });
            if started.elapsed() >= self.config.busy_limit {
                return Err(named(busy_for_long()));
            }
            let wait = backoff.next_wait();
            self.hub.sleep(wait).await;
            self.watched.check().map_err(named)?;
        }
    }

    fn check_process(&self) -> Result<()> {
        if std::process::id() == self.pid {
            return Ok(());
        }
        let detail =
            "this process was forked from the one that opened the store, and holds nothing";
        Err(Error::new(ErrorKind::Closed, DOING, detail).advise("open the store in this process"))
    }

    /// One try; `None` if somebody else is writing.
    fn attempt<T>(
        &self,
        kind: Kind,
        step: &mut impl FnMut(&mut Tx<'_>) -> Step<T>,
    ) -> Result<Option<(Moment, T)>> {
        let mut guard = match self.db.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let db = guard.as_mut().ok_or_else(closed)?;
        // Tokens are reserved an hour at a time: twice is enough for any step.
        for _ in 0..3 {
            match self.once(db, kind, step) {
                Ok((sent, answer, after)) => {
                    // Those who are woken may come back at once.
                    drop(guard);
                    self.hub.deliver(after.words);
                    self.hub.bury(&after.dead);
                    self.shorten_log();
                    return Ok(Some((sent, answer)));
                }
                Err(Fail::Busy) => return Ok(None),
                Err(Fail::Error(error)) => return Err(error),
                Err(Fail::Reserve(from)) => match open::reserve(&db.connection, &db.path, from) {
                    Ok(()) => {}
                    Err(Fail::Busy) => return Ok(None),
                    Err(Fail::Error(error)) => return Err(error),
                    Err(Fail::Reserve(_)) => break,
                },
            }
        }
        Err(Error::new(ErrorKind::Bug, DOING, "reserved tokens do not suffice"))
    }

    /// After a commit, once all who wait for it have been told.
    fn shorten_log(&self) {
        // Whoever uses the connection by now does it after a commit of its own.
        if let Ok(mut guard) = self.db.try_lock()
            && let Some(db) = guard.as_mut()
        {
            db.log.committed(&db.connection);
        }
    }

    fn once<T>(
        &self,
        db: &mut Db,
        kind: Kind,
        step: &mut impl FnMut(&mut Tx<'_>) -> Step<T>,
    ) -> Step<(Moment, T, After)> {
        let connection = &db.connection;
        let sent = self.machine.clock.now();
        let begin = match kind {
            Kind::Write => "BEGIN IMMEDIATE",
            Kind::Read => "BEGIN",
        };
        connection.prepare_cached(begin)?.raw_execute()?;
        let begun = Begun(connection);
        let mut tx = Tx {
            db: connection,
            live: &self.live,
            hub: &self.hub,
            tokens: &mut db.tokens,
            now: self.machine.shared(self.machine.clock.now()),
            wall_us: self.machine.wall.now_us(),
            words: Vec::new(),
            dead: Vec::new(),
            probed: Vec::new(),
        };
        let answer = step(&mut tx)?;
        let after = After { words: tx.words, dead: tx.dead };
        if let Err(error) = connection.prepare_cached("COMMIT")?.raw_execute() {
            return Err(match Fail::from(error) {
                Fail::Error(error) => Fail::Error(error.maybe_applied()),
                other => other,
            });
        }
        drop(begun);
        Ok((sent, answer, after))
    }

    /// When belief ends in what a transaction sent at `sent` left.
    pub(crate) fn believed(sent: Moment, left: Duration) -> Moment {
        belief_end(sent, left, Drift::None)
    }

    /// Refuses a term out of bounds.
    pub(crate) fn check_term(resource: &ResourceName, term: Duration) -> Result<()> {
        if (TERM_MIN..=TERM_MAX).contains(&term) {
            return Ok(());
        }
        let detail = format!("its term is {term:?}: want 50 ms to 366 days");
        Err(Error::new(ErrorKind::Usage, DOING, detail).on(resource))
    }
}

/// What is to be told and removed once a transaction is over.
struct After {
    words: Vec<Word>,
    dead: Vec<Home>,
}

/// A transaction: rolled back unless it was committed, also when its step panics, since nobody else
/// could write until then.
struct Begun<'c>(&'c Connection);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        // Some errors have rolled back already; and what cannot be rolled back cannot be committed.
        if !self.0.is_autocommit()
            && let Ok(mut statement) = self.0.prepare_cached("ROLLBACK")
        {
            let _ = statement.raw_execute();
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, DOING, "the store was closed")
}

pub(crate) fn busy_for_long() -> Error {
    let detail = "another program's long write transaction holds the database";
    Error::new(ErrorKind::Unavailable, DOING, detail)
        .advise("find it with `fuser` or `lsof` and end it, or let it go on if it was stopped")
}

fn profile(url: String) -> Profile {
    Profile {
        name: "sqlite",
        url,
        clock: ClockKind::Monotonic,
        drift: Drift::None,
        clock_hazards: &["terms stand still while the machine sleeps"],
        fair: true,
        queues: true,
        sees_death: true,
        place: PlaceKept::Watched,
        reentry: Reentry::Store,
        modes: Modes::ALL,
        term_bounds: (TERM_MIN, TERM_MAX),
        transferable: true,
        polls_anywhere: true,
        remote: false,
        token_hazards: &[
            "a database restored from a backup goes back to older tokens unless the wall clock is \
             ahead of them or the epoch is raised",
        ],
        limits: &[
            "a process that is stopped within its transaction stops all renewals at this database",
            "a power loss may undo the last moments before it: a claim of `acquire` or \
             `--hold-at-least` taken then is free again",
            "processes of other machines must not open the file, also not through a shared folder",
            "what closes inherited descriptors no longer keeps the lock of the leasehold that \
             started it: then the term and the fence protect",
        ],
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn profile(&self) -> &Profile {
        &self.profile
    }

    fn route(&self, _resource: &ResourceName) -> Route {
        Route(0)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        crate::enter::enter(self, claim).await.map_err(|e| e.while_doing("enter the queue"))
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let renewed = crate::renew::renew(self, claims).await;
        let named = |answer| match answer {
            Renewed::Unknown(error) => Renewed::Unknown(error.while_doing("renew")),
            answer => answer,
        };
        renewed.into_iter().map(named).collect()
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        crate::leave::leave(self, claim).await.map_err(|e| e.while_doing("leave"))
    }

    async fn changed(
        &self,
        resource: &ResourceName,
        _claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        self.check_process()?;
        let hint = self.hub.changed(resource, since, at_most).await;
        if self.hub.is_closed() { Err(closed()) } else { Ok(hint) }
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        crate::inspect::inspect(self, resource).await.map_err(|e| e.while_doing("inspect"))
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        crate::list::list(self, page).await.map_err(|e| e.while_doing("list names"))
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        crate::write::write(self, claim, value, keep)
            .await
            .map_err(|e| e.while_doing("write a record"))
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        crate::read::read(self, resource).await.map_err(|e| e.while_doing("read a record"))
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        crate::break_::break_(self, resource, expect, now)
            .await
            .map_err(|e| e.while_doing("break a grant"))
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        crate::clean::clean(self, keep, page, dry).await.map_err(|e| e.while_doing("clean names"))
    }

    async fn disturbed(&self, _since: Cursor) -> Cursor {
        std::future::pending().await
    }

    async fn close(&self) {
        if self.check_process().is_err() {
            return;
        }
        self.hub.close();
        let db = self.db.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(db) = db
            && let Err((connection, _)) = db.connection.close()
        {
            drop(connection);
        }
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        // Not by its lock: in a forked child a thread that is not there may have it for ever.
        let db = self.db.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.check_process().is_err() {
            // The files are the parent's: closing them here would touch what it has open.
            std::mem::forget(db);
            return;
        }
        self.hub.close();
        drop(db);
    }
}

/// As [`from_sqlite`], for results.
pub(crate) fn sqlite<T>(result: rusqlite::Result<T>) -> Result<T> {
    result.map_err(from_sqlite)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_step_that_panics_lets_others_write_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = SqliteConfig::new(dir.path().join("locks.db"));
        config.busy_limit = Duration::from_millis(100);
        let (one, other) =
            (SqliteStore::open(config.clone()).unwrap(), SqliteStore::open(config).unwrap());
        let broken = catch_unwind(AssertUnwindSafe(|| {
            futures_lite::future::block_on(one.decide(|_| -> Step<()> { panic!("as planted") }))
        }));
        assert!(broken.is_err());
        futures_lite::future::block_on(other.decide(|_| Ok(()))).unwrap();
        futures_lite::future::block_on(one.decide(|_| Ok(()))).unwrap();
    }
}
