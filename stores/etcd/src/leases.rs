//! The session with the cluster: its leases, and the one stream that keeps them alive.
//!
//! Answers to keepalives name only the lease, so that each answers the *oldest* question about it
//! that has none yet; belief is counted from when that question was sent. One question a lease is
//! enough for all claims that stand on it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Backoff, Clock, Cursor, Drift, Error, ErrorKind, Moment, Result, belief_end};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::error::{Cause, DOING, Failure};
use crate::proto::{
    LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_REVOKE, LEASE_TIME_TO_LIVE, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use crate::rpc::Rpc;

/// Questions that wait to be sent.
const ORDERS_MAX: usize = 4096;
/// Questions in flight on one stream.
const STREAM_MAX: usize = 4096;
/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_millis(50);

/// What a lease is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Grants of this process with terms of so many seconds.
    Shared(u64),
    /// Waiting claims of this process.
    Short,
    /// One claim, which may be passed on, or a tombstone, or a record.
    Own,
}

#[derive(Debug, Clone)]
struct Lease {
    what: Use,
    ttl: Duration,
    /// When the last question was sent that has been answered.
    sent: Moment,
    /// When the last question was sent.
    asked: Moment,
    /// When it was last wanted.
    wanted: Moment,
}

/// Until when a lease may be believed to live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Belief {
    pub(crate) sent: Moment,
    pub(crate) ttl: Duration,
    pub(crate) drift: Drift,
}

impl Belief {
    pub(crate) fn end(&self) -> Moment {
        belief_end(self.sent, self.ttl, self.drift)
    }
}

/// A lease and what is known of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) id: i64,
    pub(crate) belief: Belief,
}

/// What a look at a lease has told.
#[derive(Debug, Clone)]
pub(crate) enum Checked {
    /// It lives, and these keys stand on it.
    Lives {
        belief: Belief,
        keys: Arc<HashSet<Vec<u8>>>,
    },
    Gone,
}

type Answer = Result<Option<Belief>>;

struct Order {
    id: i64,
    done: Option<oneshot::Sender<Answer>>,
}

/// See the [module's documentation](self).
pub(crate) struct Leases {
    rpc: Rpc,
    url: String,
    clock: Arc<dyn Clock>,
    drift: Drift,
    orders: mpsc::Sender<Order>,
    leases: Mutex<HashMap<i64, Lease>>,
    rounds: Mutex<HashMap<i64, Vec<oneshot::Sender<Result<Checked>>>>>,
    granting: tokio::sync::Mutex<()>,
    disturbed: watch::Sender<u64>,
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").field("leases", &self.lock().len()).finish_non_exhaustive()
    }
}

/// When a question was sent, and who waits for its answer.
type Question = (Moment, Option<oneshot::Sender<Answer>>);

/// The questions of the stream that have no answer yet, oldest first for each lease.
#[derive(Default)]
struct Asked {
    by_lease: HashMap<i64, VecDeque<Question>>,
}

impl Asked {
    fn oldest(&self) -> Option<Moment> {
        self.by_lease.values().filter_map(|asked| asked.front()).map(|(sent, _)| *sent).min()
    }

    fn fail(self, error: &Error) {
        for done in self.by_lease.into_values().flatten().filter_map(|(_, done)| done) {
            let _ = done.send(Err(error.clone()));
        }
    }
}

impl Leases {
    /// The session, and the task that keeps it.
    pub(crate) fn new(
        rpc: Rpc,
        url: String,
        clock: Arc<dyn Clock>,
        drift: Drift,
    ) -> (Arc<Leases>, impl Future<Output = ()> + Send + 'static) {
        let (orders, ordered) = mpsc::channel(ORDERS_MAX);
        let leases = Arc::new(Leases {
            rpc,
            url,
            clock,
            drift,
            orders,
            leases: Mutex::default(),
            rounds: Mutex::default(),
            granting: tokio::sync::Mutex::new(()),
            disturbed: watch::Sender::new(0),
        });
        let keeper = keep(Arc::clone(&leases), ordered);
        (leases, keeper)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has happened that may have ended claims.
    pub(crate) fn disturb(&self) {
        self.disturbed.send_modify(|count| *count += 1);
    }

    pub(crate) async fn disturbed(&self, since: Cursor) -> Cursor {
        let mut receiver = self.disturbed.subscribe();
        let moved = receiver.wait_for(|count| *count > since.0).await.map(|count| *count);
        match moved {
            Ok(count) => Cursor(count),
            Err(_) => std::future::pending().await,
        }
    }

    fn belief_of(&self, lease: &Lease) -> Belief {
        Belief { sent: lease.sent, ttl: lease.ttl, drift: self.drift }
    }

    /// The leases on which several claims may stand.
    pub(crate) fn common_ids(&self) -> Vec<i64> {
        let leases = self.lock();
        let common = leases.iter().filter(|(_, lease)| lease.what != Use::Own);
        common.map(|(id, _)| *id).collect()
    }

    /// What is known of a lease of ours.
    pub(crate) fn belief(&self, id: i64) -> Option<Belief> {
        self.lock().get(&id).map(|lease| self.belief_of(lease))
    }

    /// What a lease of ours is for.
    pub(crate) fn what(&self, id: i64) -> Option<Use> {
        self.lock().get(&id).map(|lease| lease.what)
    }

    /// Takes a lease into care that somebody else has made.
    pub(crate) fn adopt(&self, id: i64, belief: Belief) {
        let (sent, ttl) = (belief.sent, belief.ttl);
        let lease = Lease { what: Use::Own, ttl, sent, asked: sent, wanted: sent };
        self.lock().entry(id).or_insert(lease);
    }

    /// Lets go of a lease, without a word to the cluster.
    pub(crate) fn forget(&self, id: i64) {
        self.lock().remove(&id);
    }

    /// The one lease of this process for this use, with most of its time left.
    pub(crate) async fn common(&self, what: Use, ttl: u64) -> Result<Live> {
        if let Some(live) = self.fresh(what) {
            return Ok(live);
        }
        let _one = self.granting.lock().await;
        if let Some(live) = self.fresh(what) {
            return Ok(live);
        }
        let stale = self.lock().iter().find(|(_, lease)| lease.what == what).map(|(id, _)| *id);
        if let Some(id) = stale
            && let Some(belief) = self.keep_alive(id).await?
        {
            return Ok(Live { id, belief });
        }
        self.grant(what, ttl).await
    }

    /// The common lease for this use if it is there and fresh.
    pub(crate) fn at_hand(&self, what: Use) -> Option<Live> {
        self.fresh(what)
    }

    /// One with two thirds of its time left is not asked for again first.
    fn fresh(&self, what: Use) -> Option<Live> {
        let now = self.clock.now();
        let mut leases = self.lock();
        let (id, lease) = leases.iter_mut().find(|(_, lease)| lease.what == what)?;
        lease.wanted = now;
        let fresh = now.since(lease.sent) < lease.ttl / 3;
        fresh.then(|| Live { id: *id, belief: self.belief_of(lease) })
    }

    /// A new lease.
    pub(crate) async fn grant(&self, what: Use, ttl: u64) -> Result<Live> {
        for _ in 0..3 {
            let id = random_id()?;
            let sent = self.clock.now();
            let ttl = i64::try_from(ttl).unwrap_or(i64::MAX);
            let asked: Result<LeaseGrantResponse, Failure> =
                self.rpc.call(LEASE_GRANT, LeaseGrantRequest { ttl, id }).await;
            let granted = match asked {
                Ok(granted) => granted,
                // Somebody drew the same number.
                Err(failure) if failure.detail.contains("lease already exists") => continue,
                Err(failure) => return Err(failure.error(&self.url).while_doing("grant a lease")),
            };
            let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or_default());
            let lease = Lease { what, ttl, sent, asked: sent, wanted: sent };
            let belief = self.belief_of(&lease);
            self.lock().insert(granted.id, lease);
            return Ok(Live { id: granted.id, belief });
        }
        let detail = "the cluster has a lease under every number that was drawn";
        Err(Error::new(ErrorKind::Bug, "grant a lease", detail))
    }

    /// Asks for a lease to live on: until when it is believed to, or `None` if it is gone.
    pub(crate) async fn keep_alive(&self, id: i64) -> Answer {
        let (done, answer) = oneshot::channel();
        let order = Order { id, done: Some(done) };
        if self.orders.try_send(order).is_err() {
            let detail = "too many keepalives wait to be sent";
            return Err(Error::new(ErrorKind::Unavailable, "renew", detail));
        }
        answer.await.unwrap_or_else(|_| Err(self.unreached()))
    }

    fn unreached(&self) -> Error {
        Error::new(ErrorKind::Unreachable, "renew", "the keepalive was not answered in time")
            .at(self.url.as_str())
            .maybe_applied()
    }

    /// Asks for a lease to live on, and which keys stand on it. Questions that come while one is on
    /// its way share the next one.
    pub(crate) async fn check(self: &Arc<Leases>, id: i64) -> Result<Checked> {
        let (done, answer) = oneshot::channel();
        let first = {
            let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
            let first = !rounds.contains_key(&id);
            rounds.entry(id).or_default().push(done);
            first
        };
        if first {
            tokio::spawn(Arc::clone(self).rounds(id));
        }
        answer.await.unwrap_or_else(|_| Err(self.unreached()))
    }

    async fn rounds(self: Arc<Leases>, id: i64) {
        loop {
            let asked = {
                let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
                match rounds.get_mut(&id) {
                    Some(waiting) if !waiting.is_empty() => std::mem::take(waiting),
                    _ => {
                        rounds.remove(&id);
                        return;
                    }
                }
            };
            let answer = self.round(id).await;
            for done in asked {
                let _ = done.send(answer.clone());
            }
        }
    }

    async fn round(&self, id: i64) -> Result<Checked> {
        let (kept, listed) = if self.what(id) == Some(Use::Own) {
            // A claim that an operator broke ends with the term it has: look first.
            let listed = self.list(id).await?;
            let broken = listed.as_ref().is_some_and(|keys| keys.iter().any(|k| is_mark(k)));
            match listed {
                Some(keys) if broken => {
                    let belief = self.belief(id).unwrap_or(self.no_belief());
                    return Ok(Checked::Lives { belief, keys: Arc::new(keys) });
                }
                None => (None, None),
                Some(keys) => (self.keep_alive(id).await?, Some(keys)),
            }
        } else {
            let (kept, listed) = tokio::join!(self.keep_alive(id), self.list(id));
            (kept?, listed?)
        };
        match (kept, listed) {
            (Some(belief), Some(keys)) => Ok(Checked::Lives { belief, keys: Arc::new(keys) }),
            _ => {
                self.forget(id);
                Ok(Checked::Gone)
            }
        }
    }

    fn no_belief(&self) -> Belief {
        Belief { sent: Moment::START, ttl: Duration::ZERO, drift: self.drift }
    }

    /// The keys on a lease; `None` if it is gone.
    async fn list(&self, id: i64) -> Result<Option<HashSet<Vec<u8>>>> {
        let asked = self.time_to_live(&self.rpc, id, true).await;
        let answer = asked.map_err(|f| f.error(&self.url).while_doing("renew"))?;
        Ok(answer.map(|answer| answer.keys.into_iter().collect()))
    }

    /// What the cluster says of a lease; `None` if it is gone.
    pub(crate) async fn time_to_live(
        &self,
        rpc: &Rpc,
        id: i64,
        keys: bool,
    ) -> Result<Option<LeaseTimeToLiveResponse>, Failure> {
        let question = LeaseTimeToLiveRequest { id, keys };
        let asked: Result<LeaseTimeToLiveResponse, Failure> =
            rpc.call(LEASE_TIME_TO_LIVE, question).await;
        match asked {
            // What is left is told in whole seconds, cut off; -1 says that it is gone.
            Ok(answer) if answer.ttl >= 0 => Ok(Some(answer)),
            Ok(_) => Ok(None),
            Err(failure) if failure.cause == Cause::LeaseGone => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// What may be believed of a lease of another process: what the cluster leaves of it.
    pub(crate) async fn look(&self, rpc: &Rpc, id: i64) -> Result<Option<Belief>> {
        let sent = self.clock.now();
        let answer = self.time_to_live(rpc, id, false).await;
        let answer = answer.map_err(|f| f.error(&self.url).while_doing(DOING))?;
        Ok(answer.map(|answer| Belief {
            sent,
            ttl: Duration::from_secs(u64::try_from(answer.ttl).unwrap_or_default()),
            drift: self.drift,
        }))
    }

    /// Gives a lease back in the background; what stands on it goes with it.
    pub(crate) fn give_back(&self, id: i64) {
        self.forget(id);
        let rpc = self.rpc.clone();
        tokio::spawn(async move {
            let question = LeaseRevokeRequest { id };
            // If it fails, the lease ends by itself.
            let _: Result<LeaseRevokeResponse, Failure> = rpc.call(LEASE_REVOKE, question).await;
        });
    }

    /// Gives back our common leases on which nothing stands.
    pub(crate) async fn close(&self, in_use: &HashSet<i64>) {
        let idle: Vec<i64> = {
            let leases = self.lock();
            let idle =
                leases.iter().filter(|(id, lease)| lease.what != Use::Own && !in_use.contains(*id));
            idle.map(|(id, _)| *id).collect()
        };
        for id in idle {
            let question = LeaseRevokeRequest { id };
            let within = Duration::from_secs(1);
            let _: Result<LeaseRevokeResponse, Failure> =
                self.rpc.call_within(within, LEASE_REVOKE, question).await;
        }
    }

    /// Forgets what has not been of use for twice its time. Nobody keeps it alive by then, so that it
    /// has ended, or soon will: it is not revoked, since a claim that is on its way may yet stand on
    /// it, and be believed.
    pub(crate) fn tidy(&self, in_use: &HashSet<i64>) {
        let now = self.clock.now();
        self.lock().retain(|id, lease| {
            in_use.contains(id) || now.since(lease.wanted.max(lease.sent)) <= lease.ttl * 2
        });
    }

    /// Which of our common leases are to be asked for.
    fn due(&self, asked: &Asked) -> Vec<i64> {
        let now = self.clock.now();
        let leases = self.lock();
        let due = leases.iter().filter(|(id, lease)| {
            let in_flight = asked.by_lease.get(*id).is_some_and(|asked| !asked.is_empty());
            let every = if lease.what == Use::Short { lease.ttl / 4 } else { lease.ttl / 3 };
            let wanted = now.since(lease.wanted) <= lease.ttl;
            let due = now.since(lease.asked) >= every;
            lease.what != Use::Own && wanted && due && !in_flight
        });
        due.map(|(id, _)| *id).collect()
    }

    /// Leases on which something stands are wanted.
    pub(crate) fn want(&self, in_use: &HashSet<i64>) {
        let now = self.clock.now();
        for (_, lease) in self.lock().iter_mut().filter(|(id, _)| in_use.contains(id)) {
            lease.wanted = now;
        }
    }

    /// How long an answer may take before another member is asked: within the shortest lease.
    fn answer_within(&self) -> Duration {
        let shortest = self.lock().values().map(|lease| lease.ttl).min();
        let within = shortest.unwrap_or(Duration::from_secs(6)) / 2;
        within.clamp(Duration::from_millis(800), Duration::from_secs(3))
    }

    fn ask(&self, to: &mpsc::Sender<LeaseKeepAliveRequest>, asked: &mut Asked, order: Order) {
        let now = self.clock.now();
        if let Some(lease) = self.lock().get_mut(&order.id) {
            lease.asked = now;
        }
        if to.try_send(LeaseKeepAliveRequest { id: order.id }).is_err() {
            if let Some(done) = order.done {
                let _ = done.send(Err(self.unreached()));
            }
            return;
        }
        asked.by_lease.entry(order.id).or_default().push_back((now, order.done));
    }

    fn answered(&self, answer: &LeaseKeepAliveResponse, asked: &mut Asked) {
        let Some(waiting) = asked.by_lease.get_mut(&answer.id) else { return };
        let Some((sent, done)) = waiting.pop_front() else { return };
        if waiting.is_empty() {
            asked.by_lease.remove(&answer.id);
        }
        let ttl = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0);
        let belief = ttl.map(|ttl| {
            let ttl = Duration::from_secs(ttl);
            let mut leases = self.lock();
            if let Some(lease) = leases.get_mut(&answer.id) {
                lease.sent = lease.sent.max(sent);
                lease.ttl = ttl;
            }
            Belief { sent, ttl, drift: self.drift }
        });
        if belief.is_none() {
            self.forget(answer.id);
            self.disturb();
        }
        if let Some(done) = done {
            let _ = done.send(Ok(belief));
        }
    }
}

/// Keeps leases alive for as long as the runtime lives.
async fn keep(leases: Arc<Leases>, mut orders: mpsc::Receiver<Order>) {
    let seed = u64::try_from(random_id().unwrap_or(1)).unwrap_or(1);
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1), seed);
    loop {
        let mut asked = Asked::default();
        let (to, outbound) = mpsc::channel(STREAM_MAX);
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) => leases.ask(&to, &mut asked, order),
                None => return,
            },
            () = sleep(TICK) => {
                for id in leases.due(&asked) {
                    leases.ask(&to, &mut asked, Order { id, done: None });
                }
                if asked.by_lease.is_empty() {
                    continue;
                }
            }
        }
        // More that wait already travel along.
        while let Ok(order) = orders.try_recv() {
            leases.ask(&to, &mut asked, order);
        }
        let outbound = ReceiverStream::new(outbound);
        let within = leases.answer_within();
        let (number, opened) = leases.rpc.stream(LEASE_KEEP_ALIVE, within, outbound).await;
        match opened {
            Ok(stream) => {
                if turn(&leases, &to, &mut orders, &mut asked, stream).await {
                    backoff.reset();
                }
            }
            Err(failure) if failure.cause == Cause::Token => leases.rpc.forget_token().await,
            Err(_) => {}
        }
        leases.rpc.pass_on(number);
        asked.fail(&leases.unreached());
        leases.disturb();
        sleep(backoff.next_wait()).await;
    }
}

/// Asks and hears until the stream breaks or falls silent; whether anything was heard.
async fn turn(
    leases: &Arc<Leases>,
    to: &mpsc::Sender<LeaseKeepAliveRequest>,
    orders: &mut mpsc::Receiver<Order>,
    asked: &mut Asked,
    mut stream: Streaming<LeaseKeepAliveResponse>,
) -> bool {
    let mut heard = false;
    loop {
        tokio::select! {
            biased;
            answer = stream.message() => match answer {
                Ok(Some(answer)) => {
                    heard = true;
                    leases.answered(&answer, asked);
                }
                Ok(None) | Err(_) => return heard,
            },
            order = orders.recv() => match order {
                Some(order) => leases.ask(to, asked, order),
                None => return heard,
            },
            () = sleep(TICK) => {}
        }
        let silent = asked
            .oldest()
            .is_some_and(|sent| leases.clock.now().since(sent) > leases.answer_within());
        if silent {
            return heard;
        }
        for id in leases.due(asked) {
            leases.ask(to, asked, Order { id, done: None });
        }
    }
}

/// Whether a key marks a grant as broken.
fn is_mark(key: &[u8]) -> bool {
    let mark = b".lh.break-";
    key.windows(mark.len()).any(|part| part == mark)
}

/// A lease's number: positive, and drawn at random.
fn random_id() -> Result<i64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| {
        Error::new(ErrorKind::Unavailable, DOING, format!("no random numbers: {e}"))
    })?;
    Ok((i64::from_le_bytes(bytes) & i64::MAX).max(1))
}
