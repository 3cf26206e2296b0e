//! What this client knows: its seats, the claims that have ended, and who waits for word.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{
    Claim, ClaimId, Clock as _, ClockKind, Ended, Error, ErrorKind, Modes, Moment, PlaceKept,
    Profile, Reentry, ResourceName, Result, belief_end, margin,
};
use leasehold_net::BootClock;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::config::ZookeeperConfig;
use crate::error::{DOING, from_fail};
use crate::names::Paths;
use crate::seat::{Seat, Stage};
use crate::wire::{Answer, Event, Fail, Now, Op, Reply, Stat, Wire};

/// The shortest term: belief in a shorter one would be eaten by its margins.
pub(crate) const TERM_MIN: Duration = Duration::from_millis(100);
/// For how long an ended claim is remembered at least.
const GRAVE_MIN: Duration = Duration::from_secs(60);
/// For how long a verb waits for a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The client.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) config: ZookeeperConfig,
    pub(crate) profile: Profile,
    pub(crate) runtime: Handle,
    pub(crate) wire: Wire,
    state: Mutex<State>,
    /// Counts what happens; cursors are numbers of it.
    serial: AtomicU64,
    disturbed: AtomicU64,
    pub(crate) disturbance: Notify,
    /// What the leader's clock showed, in ms, and when we heard of it at the latest.
    server_time: Mutex<Option<(i64, Moment)>>,
}

#[derive(Debug, Default)]
struct State {
    claims: HashMap<ClaimId, Arc<Seat>>,
    seats: HashMap<ResourceName, Vec<Arc<Seat>>>,
    graves: HashMap<ClaimId, (Ended, Moment)>,
    topics: HashMap<ResourceName, Arc<Topic>>,
}

/// Who waits for word of a resource without a claim that waits here.
#[derive(Debug, Default)]
pub(crate) struct Topic {
    latest: AtomicU64,
    pub(crate) moved: Notify,
}

impl Topic {
    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }
}

/// What is known of a claim.
pub(crate) enum Known {
    Nothing,
    Ended(Ended),
    Sits(Arc<Seat>),
}

impl Hall {
    pub(crate) fn new(
        config: ZookeeperConfig,
        runtime: Handle,
        wire: Wire,
        timeout: Duration,
    ) -> Hall {
        Hall {
            profile: profile(&config, timeout),
            config,
            runtime,
            wire,
            state: Mutex::default(),
            serial: AtomicU64::new(1),
            disturbed: AtomicU64::new(0),
            disturbance: Notify::new(),
            server_time: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Moment {
        BootClock.now()
    }

    /// Does work on the store's own thread. It goes on when the caller is dropped, so that what it
    /// began at the server is known here.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Hall>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, result) = oneshot::channel();
        self.runtime.spawn(async move {
            let _ = done.send(work.await);
        });
        let result = result.await.unwrap_or_else(|_| {
            let detail = "the store's thread has ended";
            Err(Error::new(ErrorKind::Closed, DOING, detail).maybe_applied())
        });
        result.map_err(|e| e.at(self.profile.url.as_str()))
    }

    /// The present session, once there is a connection.
    pub(crate) async fn session(&self) -> Result<Now> {
        let session = self.wire.session();
        match tokio::time::timeout(PATIENCE, session.connected()).await {
            Ok(Some(now)) => Ok(now),
            Ok(None) => Err(from_fail(Fail::Closed, None)),
            Err(_) => Err(from_fail(Fail::Lost { maybe: false }, session.trouble())),
        }
    }

    pub(crate) fn error(&self, fail: Fail) -> Error {
        from_fail(fail, self.wire.session().trouble())
    }

    /// One request and its answer.
    pub(crate) async fn ask(&self, generation: u64, op: &Op) -> Answer {
        self.wire.call(generation, op).answer().await
    }

    pub(crate) fn paths(&self, name: &ResourceName) -> Result<Paths> {
        Paths::of(&self.config.root, self.config.naming, name).map_err(|why| {
            let detail = format!("its raw name cannot be a path: {why}");
            Error::new(ErrorKind::Usage, DOING, detail).on(name)
        })
    }

    pub(crate) fn find(&self, id: ClaimId) -> Known {
        let state = self.lock();
        if let Some(seat) = state.claims.get(&id) {
            return Known::Sits(Arc::clone(seat));
        }
        state.graves.get(&id).map_or(Known::Nothing, |(how, _)| Known::Ended(*how))
    }

    /// Seats of this client on a resource.
    pub(crate) fn seats_on(&self, name: &ResourceName) -> Vec<Arc<Seat>> {
        self.lock().seats.get(name).cloned().unwrap_or_default()
    }

    pub(crate) fn all_seats(&self) -> Vec<Arc<Seat>> {
        self.lock().seats.values().flatten().cloned().collect()
    }

    /// A new seat, unless the claim has one or has ended.
    pub(crate) fn sit(&self, claim: &Claim, paths: Paths) -> Known {
        let mut state = self.lock();
        if let Some((how, _)) = state.graves.get(&claim.id) {
            return Known::Ended(*how);
        }
        if let Some(seat) = state.claims.get(&claim.id) {
            return Known::Sits(Arc::clone(seat));
        }
        let seat = Arc::new(Seat::new(claim.clone(), paths));
        state.claims.insert(claim.id, Arc::clone(&seat));
        state.seats.entry(claim.resource.clone()).or_default().push(Arc::clone(&seat));
        Known::Sits(seat)
    }

    /// A claim that re-enters stands by this seat.
    pub(crate) fn join(&self, id: ClaimId, seat: &Arc<Seat>) {
        self.lock().claims.insert(id, Arc::clone(seat));
    }

    /// A claim has ended; it is remembered for its term at least.
    pub(crate) fn bury(&self, id: ClaimId, how: Ended, term: Duration) {
        let until = self.now() + term.max(GRAVE_MIN);
        let mut state = self.lock();
        state.claims.remove(&id);
        let grave = state.graves.entry(id).or_insert((how, until));
        grave.1 = grave.1.max(until);
    }

    /// A refused claim leaves nothing behind, and may be entered again.
    pub(crate) fn forget(&self, seat: &Arc<Seat>) {
        let ids: Vec<ClaimId> = seat.facts().holds.drain(..).map(|hold| hold.id).collect();
        seat.facts().stage = Stage::Over(Ended::Released);
        let mut state = self.lock();
        for id in ids {
            state.claims.remove(&id);
        }
        remove_seat(&mut state, seat);
    }

    /// A seat has ended, with all claims that stand by it.
    pub(crate) fn finish(&self, seat: &Arc<Seat>, how: Ended) {
        let holds = {
            let mut facts = seat.facts();
            if !matches!(facts.stage, Stage::Over(_)) {
                facts.stage = Stage::Over(how);
            }
            facts.leaving = true;
            std::mem::take(&mut facts.holds)
        };
        for hold in holds {
            self.bury(hold.id, how, hold.term);
        }
        remove_seat(&mut self.lock(), seat);
        self.stir(seat);
    }

    /// Something happened to a seat: who waits for it is told.
    pub(crate) fn stir(&self, seat: &Seat) {
        let number = self.serial.fetch_add(1, Ordering::Relaxed);
        seat.stir(number);
        let topic = self.lock().topics.get(&seat.claim.resource).cloned();
        if let Some(topic) = topic {
            topic.latest.fetch_max(number, Ordering::AcqRel);
            topic.moved.notify_waiters();
        }
    }

    /// Who waits for word of a resource. What happened to seats here before is not missed.
    pub(crate) fn topic(&self, name: &ResourceName) -> Arc<Topic> {
        let mut state = self.lock();
        let latest = state.seats.get(name).into_iter().flatten().map(|seat| seat.latest()).max();
        let topic = Arc::clone(state.topics.entry(name.clone()).or_default());
        topic.latest.fetch_max(latest.unwrap_or(0), Ordering::AcqRel);
        topic
    }

    pub(crate) fn disturbed_at(&self) -> u64 {
        self.disturbed.load(Ordering::Acquire)
    }

    /// Something may have ended claims: all that is held is to be looked at.
    pub(crate) fn disturb(&self) {
        let number = self.serial.fetch_add(1, Ordering::Relaxed);
        self.disturbed.fetch_max(number, Ordering::AcqRel);
        self.disturbance.notify_waiters();
    }

    /// As [`Hall::stir`], for many and for all who wait without a claim here.
    fn stir_all(&self, wanted: impl Fn(&Seat) -> bool) {
        for seat in self.all_seats() {
            if wanted(&seat) {
                self.stir(&seat);
            }
        }
        let topics: Vec<Arc<Topic>> = self.lock().topics.values().cloned().collect();
        let number = self.serial.fetch_add(1, Ordering::Relaxed);
        for topic in topics {
            topic.latest.fetch_max(number, Ordering::AcqRel);
            topic.moved.notify_waiters();
        }
    }

    /// Takes in what the session tells of itself.
    pub(crate) fn on_event(&self, event: Event) {
        match event {
            Event::Connected => self.stir_all(|_| true),
            // Who waits hears at once that nobody can be asked; what is held is asked for when it is
            // due, and once there is a connection.
            Event::Cut => {
                return self.stir_all(|seat| matches!(seat.facts().stage, Stage::Waiting(_)));
            }
            Event::Over { generation } => {
                for seat in self.all_seats() {
                    if seat.facts().generation == generation {
                        self.finish(&seat, Ended::Expired);
                    }
                }
            }
        }
        self.disturb();
    }

    /// Forgets claims that ended long ago, and topics for which nobody waits.
    pub(crate) fn sweep(&self) {
        let now = self.now();
        let mut state = self.lock();
        state.graves.retain(|_, (_, until)| *until > now);
        let State { topics, seats, .. } = &mut *state;
        topics.retain(|name, topic| Arc::strong_count(topic) > 1 || seats.contains_key(name));
    }

    /// When belief ends in what a session vouches for, whatever the term: a follower tells the
    /// leader late of what it heard from us, by half a tick at most, and a timeout is two ticks at
    /// least.
    pub(crate) fn session_end(&self, generation: u64) -> Moment {
        match self.wire.session().now() {
            Some(now) if now.generation == generation => {
                let timeout = now.timeout;
                let less = timeout / 4 + self.config.drift.within(timeout) + margin(timeout);
                now.vouched + timeout.saturating_sub(less)
            }
            _ => Moment::START,
        }
    }

    /// When belief ends in a grant.
    pub(crate) fn until(&self, generation: u64, sent: Moment, term: Duration) -> Moment {
        belief_end(sent, term, self.config.drift).min(self.session_end(generation))
    }

    /// Takes in a time of the leader's clock, unless it is known to be past.
    pub(crate) fn note_time(&self, ms: i64) {
        if self.server_now().is_some_and(|known| ms <= known) {
            return;
        }
        let now = self.now();
        let mut time = self.server_time.lock().unwrap_or_else(PoisonError::into_inner);
        *time = Some((ms, now));
    }

    /// What the leader's clock shows now, at least, if we have heard of it lately.
    pub(crate) fn server_now(&self) -> Option<i64> {
        let time = *self.server_time.lock().unwrap_or_else(PoisonError::into_inner);
        let (ms, heard) = time?;
        let since = self.now().since(heard);
        if since > Duration::from_secs(600) {
            return None;
        }
        Some(ms.saturating_add(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }

    /// What the leader's clock shows now; asked for by a small write where it is not known.
    pub(crate) async fn ask_time(&self, generation: u64) -> Result<i64> {
        if let Some(now) = self.server_now() {
            return Ok(now);
        }
        let path = format!("{}/{}", self.config.root, crate::names::OWN);
        let op = Op::Set { path, data: crate::open::VERSION.to_vec(), version: -1 };
        let stat = stat(self.ask(generation, &op).await.result).map_err(|e| self.error(e))?;
        self.note_time(stat.mtime);
        Ok(stat.mtime)
    }
}

fn remove_seat(state: &mut State, seat: &Arc<Seat>) {
    let name = &seat.claim.resource;
    if let Some(seats) = state.seats.get_mut(name) {
        seats.retain(|other| !Arc::ptr_eq(other, seat));
        if seats.is_empty() {
            state.seats.remove(name);
        }
    }
}

pub(crate) fn stat(reply: Result<Reply, Fail>) -> Result<Stat, Fail> {
    match reply? {
        Reply::Stat(stat) | Reply::Data(_, stat) => Ok(stat),
        _ => Err(Fail::Garbled),
    }
}

pub(crate) fn data(reply: Result<Reply, Fail>) -> Result<(Vec<u8>, Stat), Fail> {
    match reply? {
        Reply::Data(data, stat) => Ok((data, stat)),
        _ => Err(Fail::Garbled),
    }
}

pub(crate) fn children(reply: Result<Reply, Fail>) -> Result<Vec<String>, Fail> {
    match reply? {
        Reply::Children(children) => Ok(children),
        _ => Err(Fail::Garbled),
    }
}

/// Reads "there is none" as a value.
pub(crate) fn maybe<T>(answer: Result<T, Fail>) -> Result<Option<T>, Fail> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Fail::Refused(refusal)) if refusal.code == crate::wire::code::NO_NODE => Ok(None),
        Err(fail) => Err(fail),
    }
}

fn profile(config: &ZookeeperConfig, timeout: Duration) -> Profile {
    Profile {
        name: "zookeeper",
        url: config.url(),
        clock: ClockKind::Boot,
        drift: config.drift,
        clock_hazards: &[
            "a server whose monotonic clock runs faster than the drift ends sessions early",
            "a leader whose wall clock is set ahead cuts `after_loss` short",
        ],
        fair: true,
        queues: true,
        sees_death: true,
        place: PlaceKept::Watched,
        reentry: Reentry::Client,
        modes: Modes::ALL,
        term_bounds: (TERM_MIN.min(timeout), timeout),
        transferable: false,
        polls_anywhere: true,
        remote: true,
        token_hazards: &[
            "an ensemble that is restored from a backup, or made anew, goes back to older tokens: \
             raise the epoch",
        ],
        limits: &[
            "a holder or a waiter that dies keeps its place until its session ends: the `session` \
             option, whatever its term",
            "a term that is shorter than the session is ended by its own client",
            "claims live and die with their client's session: none is passed to another process",
            "foreign clients do not tell how their grants end: a grant tells how the last of ours did",
            "a waiter that dies counts as an unclean end for the next grant",
        ],
    }
}
