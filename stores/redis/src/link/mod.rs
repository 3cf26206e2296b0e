//! The link to a deployment: one server, a master under Sentinels, or a cluster.
//!
//! It finds the server that has a key, keeps the connections there, sends scripts, and hears what
//! is said on channels. It never sends anything twice whose answer was lost; it tells what has
//! happened to the servers ([`Link::disturbed`], [`Link::cause_since`]).

mod board;
mod call;
mod cluster;
mod dial;
mod disturbance;
mod durable;
mod ear;
mod gathered;
mod mux;
mod node;
mod pipe;
mod refusal;
mod resp;
mod script;
mod sentinel;
mod shared;
mod slot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold_core::{Backoff, Clock, Error, ErrorKind, Result, Route};
use leasehold_net::{HostPort, Io, Secret, Tls};

use self::board::{Board, Name};
pub(crate) use self::board::{Event, Listener};
pub(crate) use self::call::Answer;
use self::call::What;
use self::cluster::Cluster;
use self::dial::{Address, Dialer};
pub(crate) use self::disturbance::Cause;
use self::disturbance::Slots;
pub(crate) use self::durable::{Durability, Reached};
use self::ear::Ear;
use self::node::{Line, Node, Place};
use self::refusal::DOING;
pub(crate) use self::resp::Reply;
pub(crate) use self::script::{Script, Usual};
use self::sentinel::Sentinels;
use self::shared::Shared;
pub(crate) use self::shared::Side;
pub(crate) use self::slot::{slot_of, word_in};

/// How long the server may take to confirm a subscription.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);
/// The waits between attempts to connect for the first time.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// What stands where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Single(HostPort),
    Sentinel {
        sentinels: Vec<HostPort>,
        master: String,
        user: Option<String>,
        password: Option<Secret>,
    },
    Cluster(Vec<HostPort>),
}

/// How to reach a deployment.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) shape: Shape,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) db: u32,
    pub(crate) tls: Option<Tls>,
    /// For how long the first connection is tried.
    pub(crate) connect_within: Duration,
    /// The URL without its secret.
    pub(crate) url: String,
}

/// What a call is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Somebody waits for it.
    Front,
    /// Renewals, which nothing else may delay.
    Renewals,
    /// What may take long, and what it would delay may wait.
    Slow,
}

/// A script with its keys and arguments.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) args: Vec<Vec<u8>>,
}

/// A node, while the link lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NodeId(u64);

/// What the servers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Facts {
    /// `(0, 0, 0)` where they do not say.
    pub(crate) version: (u16, u16, u16),
    pub(crate) cluster: bool,
    /// Whether channels belong to slots: SPUBLISH is what to publish with.
    pub(crate) sharded: bool,
    pub(crate) resp3: bool,
}

/// The link to a deployment. Clones share it; the last one closes it.
#[derive(Clone)]
pub(crate) struct Link {
    inner: Arc<Closing>,
}

/// Closes the link when the last clone is dropped; the link's own tasks hold no clone.
struct Closing(Arc<Inner>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

struct Inner {
    shared: Arc<Shared>,
    topology: Topology,
    front: Arc<Board>,
    back: Arc<Board>,
}

enum Topology {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("to", &self.inner.0.shared.shown).finish_non_exhaustive()
    }
}

impl Link {
    /// Reaches the deployment, and sees that we may run scripts there. May be polled anywhere.
    ///
    /// # Errors
    ///
    /// At once what only the user can mend; what may mend itself after `connect_within`.
    pub(crate) async fn connect(config: LinkConfig, io: Io, clock: Arc<dyn Clock>) -> Result<Link> {
        let within = config.connect_within;
        let (inner, sentinels) = Inner::new(config, io, clock)?;
        let link = Link { inner: Arc::new(Closing(Arc::new(inner))) };
        link.inner.0.reach(within).await?;
        link.inner.0.start(sentinels);
        Ok(link)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.0.shared
    }

    pub(crate) fn facts(&self) -> Facts {
        self.inner.0.facts()
    }

    /// What to publish with so that a subscription here hears it.
    pub(crate) fn publish_word(&self) -> &'static str {
        if self.facts().sharded { "SPUBLISH" } else { "PUBLISH" }
    }

    /// What fails together with a key: its node.
    pub(crate) fn route(&self, key: &[u8]) -> Route {
        match &self.inner.0.topology {
            Topology::One(_) => Route(0),
            Topology::Cluster(cluster) => {
                Route(cluster.owner(slot_of(key)).map_or(0, |node| node.id))
            }
        }
    }

    /// Runs a script where its first key is.
    ///
    /// # Errors
    ///
    /// What the server refuses, each as its own kind; `Unreachable` where it was not sent, and
    /// that it may have been done where the answer was lost.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        script: &'static Script,
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Answer> {
        let slot = self.inner.0.slot_of_first(keys);
        let what = What::Script { script, keys, args };
        self.inner.0.call(self.line(lane), slot, what).await
    }

    /// Runs a script of what is usual where its first key is, together with others of its kind
    /// that come at the same time. `same` is what all of its kind are told.
    ///
    /// # Errors
    ///
    /// As [`Link::call`].
    pub(crate) async fn call_usual(
        &self,
        usual: &'static Usual,
        keys: &[&[u8]],
        same: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Answer> {
        let slot = self.inner.0.slot_of_first(keys);
        let what = What::Usual { usual, keys, same, args };
        self.inner.0.call(self.line(Lane::Front), slot, what).await
    }

    /// Runs scripts, those of one node in one sending; each is answered alone, in order.
    pub(crate) async fn call_each(&self, lane: Lane, calls: Vec<Call>) -> Vec<Result<Answer>> {
        self.inner.0.call_each(self.line(lane), &calls).await
    }

    /// All nodes that keep data.
    pub(crate) fn masters(&self) -> Vec<NodeId> {
        self.inner.0.masters().iter().map(|node| NodeId(node.id)).collect()
    }

    /// Sends a command to a node.
    ///
    /// # Errors
    ///
    /// As [`Link::call`]; `Unavailable` where the node has left.
    pub(crate) async fn command_at(&self, node: NodeId, words: &[&[u8]]) -> Result<Answer> {
        let Some(node) = self.inner.0.masters().into_iter().find(|other| other.id == node.0) else {
            return Err(Error::new(ErrorKind::Unavailable, DOING, "the node has left the cluster"));
        };
        let line = self.line(Lane::Front);
        self.inner.0.call_at(&node, line, What::Command(words)).await
    }

    /// Runs a script, and waits until its effect is at replicas or on disk, or until that has
    /// taken too long: see what was reached.
    ///
    /// # Errors
    ///
    /// As [`Link::call`].
    pub(crate) async fn call_durably(
        &self,
        script: &'static Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        durability: Durability,
    ) -> Result<(Answer, Reached)> {
        let slot = self.inner.0.slot_of_first(keys);
        let what = What::Script { script, keys, args };
        self.inner.0.call_durably(slot, what, durability).await
    }

    /// On which side the caller is: words should be heard there.
    pub(crate) fn side(&self) -> Side {
        self.shared().side()
    }

    /// Listens to a channel until the subscription is dropped; resolves when the server has
    /// confirmed. The listener is called on that side, where the connection is, and must not wait.
    ///
    /// # Errors
    ///
    /// `Permission` where the user may not listen, `Unreachable` without a confirmation in time.
    pub(crate) async fn subscribe(
        &self,
        side: Side,
        channel: &[u8],
        listener: Listener,
    ) -> Result<Subscription> {
        self.inner.0.subscribe(side, channel, listener).await
    }

    /// How many channels the servers were asked to tell of.
    pub(crate) fn subscriptions(&self) -> usize {
        self.inner.0.front.len() + self.inner.0.back.len()
    }

    /// How often something has happened that may have ended claims or lost words, and one.
    pub(crate) fn epoch(&self) -> u64 {
        self.shared().disturbances.epoch()
    }

    /// Resolves with the current epoch once it is above `since`.
    pub(crate) async fn disturbed(&self, since: u64) -> u64 {
        self.shared().disturbances.after(since).await
    }

    /// The worst that has happened after an epoch to the server that has this key.
    pub(crate) fn cause_since(&self, key: &[u8], epoch: u64) -> Option<Cause> {
        let slot = self.inner.0.slot_of_first(&[key]);
        self.shared().disturbances.cause_since(slot, epoch)
    }

    /// Lets go of all connections.
    pub(crate) async fn close(&self) {
        self.inner.0.close();
    }

    fn line(&self, lane: Lane) -> Line {
        match lane {
            Lane::Renewals => Line::Renewals,
            Lane::Slow => Line::Slow,
            Lane::Front => match self.shared().side() {
                Side::Front => Line::Front,
                Side::Back => Line::Back,
            },
        }
    }
}

impl Inner {
    fn new(
        config: LinkConfig,
        io: Io,
        clock: Arc<dyn Clock>,
    ) -> Result<(Inner, Option<Arc<Sentinels>>)> {
        let tls = config.tls.as_ref().map(Tls::client_config).transpose()?;
        let dialer = Dialer {
            tls,
            server_name: config.tls.and_then(|tls| tls.server_name),
            user: config.user,
            password: config.password,
            db: config.db,
        };
        let at = |host: HostPort, usual| {
            let (host, port) = host.or_port(usual);
            Address { host, port }
        };
        let one = |place| Topology::One(Arc::new(Node::new(0, place, Slots::all())));
        let mut watched = None;
        let topology = match config.shape {
            Shape::Single(host) => one(Place::Single(at(host, dial::PORT))),
            Shape::Cluster(seeds) => {
                let seeds = seeds.into_iter().map(|seed| at(seed, dial::PORT)).collect();
                Topology::Cluster(Arc::new(Cluster::new(seeds)))
            }
            Shape::Sentinel { sentinels, master, user, password } => {
                let dialer = Dialer { user, password, db: 0, ..dialer.clone() };
                let addresses = sentinels.into_iter().map(|host| at(host, sentinel::PORT));
                let addresses = addresses.collect();
                let sentinels = Arc::new(Sentinels { addresses, master, dialer });
                watched = Some(Arc::clone(&sentinels));
                one(Place::Sentinel(sentinels))
            }
        };
        let shared = Arc::new(Shared::new(dialer, config.url, io, clock));
        let (front, back) = (Arc::default(), Arc::default());
        Ok((Inner { shared, topology, front, back }, watched))
    }

    /// Makes the first connection.
    async fn reach(&self, within: Duration) -> Result<()> {
        let line = match self.shared.side() {
            Side::Front => Line::Front,
            Side::Back => Line::Back,
        };
        let deadline = Instant::now() + within;
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, self.shared.seed());
        loop {
            let error = match self.reach_once(line).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !error.kind().is_transient() || Instant::now() >= deadline {
                return Err(error);
            }
            self.shared.sleep(backoff.next_wait()).await;
        }
    }

    async fn reach_once(&self, line: Line) -> Result<()> {
        if let Topology::Cluster(cluster) = &self.topology {
            let (looking, shared) = (Arc::clone(cluster), Arc::clone(&self.shared));
            let look = async move { looking.look(&shared).await };
            self.shared.io.on_back(DOING, look).await??;
        }
        // Where this URL leads is found when the first slot's node is reached.
        self.owner(0)?.mux(&self.shared, line).await.map(drop)
    }

    fn start(self: &Arc<Self>, sentinels: Option<Arc<Sentinels>>) {
        match &self.topology {
            Topology::One(node) => {
                let sentinels = sentinels.iter();
                let addresses =
                    sentinels.flat_map(|all| all.addresses.iter().map(move |a| (all, a)));
                for (sentinels, address) in addresses {
                    let shared = Arc::clone(&self.shared);
                    let listen =
                        Arc::clone(sentinels).listen(address.clone(), shared, Arc::clone(node));
                    self.shared.at_back(listen);
                }
            }
            Topology::Cluster(cluster) => {
                self.shared.at_back(Arc::clone(cluster).watch(Arc::clone(&self.shared)));
                self.shared.at_back(follow(Arc::clone(self), Arc::clone(cluster)));
            }
        }
    }

    fn facts(&self) -> Facts {
        let facts = self.shared.facts();
        let sharded = facts.cluster && (facts.valkey || facts.version >= (7, 0, 0));
        Facts { version: facts.version, cluster: facts.cluster, sharded, resp3: facts.resp3 }
    }

    fn owner(&self, slot: u16) -> Result<Arc<Node>> {
        match &self.topology {
            Topology::One(node) => Ok(Arc::clone(node)),
            Topology::Cluster(cluster) => cluster.owner(slot).ok_or_else(|| {
                self.shared.look_again.notify_one();
                Error::new(ErrorKind::Unavailable, DOING, "no node of the cluster has this slot")
                    .at(&*self.shared.shown)
            }),
        }
    }

    fn masters(&self) -> Vec<Arc<Node>> {
        match &self.topology {
            Topology::One(node) => vec![Arc::clone(node)],
            Topology::Cluster(cluster) => cluster.masters(),
        }
    }

    fn slot_of_first(&self, keys: &[&[u8]]) -> u16 {
        match (&self.topology, keys.first()) {
            (Topology::Cluster(_), Some(key)) => slot_of(key),
            _ => 0,
        }
    }

    async fn call_each(&self, line: Line, calls: &[Call]) -> Vec<Result<Answer>> {
        let mut by_node: Vec<(Arc<Node>, Vec<usize>)> = Vec::new();
        let mut answers: Vec<Option<Result<Answer>>> = calls.iter().map(|_| None).collect();
        for (at, call) in calls.iter().enumerate() {
            let keys: Vec<&[u8]> = call.keys.iter().map(Vec::as_slice).collect();
            match self.owner(self.slot_of_first(&keys)) {
                Ok(node) => match by_node.iter_mut().find(|(other, _)| other.id == node.id) {
                    Some((_, at_node)) => at_node.push(at),
                    None => by_node.push((node, vec![at])),
                },
                Err(error) => answers[at] = Some(Err(error)),
            }
        }
        // A node that is sick does not hold up the others.
        let at_nodes = by_node.iter().map(|(node, at)| self.call_each_at(node, line, calls, at));
        for (at, answer) in join_all(at_nodes).await.into_iter().flatten() {
            answers[at] = Some(answer);
        }
        let unanswered = || Err(Error::new(ErrorKind::Bug, DOING, "a call was not answered"));
        answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
    }

    async fn call_each_at(
        &self,
        node: &Arc<Node>,
        line: Line,
        calls: &[Call],
        ours: &[usize],
    ) -> Vec<(usize, Result<Answer>)> {
        let borrowed: Vec<_> = ours.iter().map(|&at| Borrowed::of(&calls[at])).collect();
        let epoch = self.shared.disturbances.epoch();
        let sent_at = self.shared.clock.now();
        let sent = match node.mux(&self.shared, line).await {
            Ok(mux) => call::send_all(&mux, line, borrowed.iter().map(Borrowed::what)),
            Err(error) => Err(error),
        };
        let mut told = Vec::with_capacity(ours.len());
        match sent {
            Ok(answers) => {
                for answer in answers {
                    told.push(answer.await);
                }
            }
            Err(error) => return ours.iter().map(|&at| (at, Err(error.clone()))).collect(),
        }
        let received_at = self.shared.clock.now();
        let each = ours.iter().zip(&borrowed).zip(told);
        let answers = each.map(async |((&at, call), reply)| {
            let answer = match reply {
                // Refused, and by this alone: it may be redirected.
                Ok(Reply::Error(_)) => {
                    self.call(line, self.slot_of_first(&call.keys), call.what()).await
                }
                Ok(reply) => Ok(Answer { reply, sent_at, received_at, epoch }),
                Err(error) => Err(error.at(&*self.shared.shown)),
            };
            (at, answer)
        });
        join_all(answers).await
    }

    async fn subscribe(
        &self,
        side: Side,
        channel: &[u8],
        listener: Listener,
    ) -> Result<Subscription> {
        self.shared.open()?;
        let board = self.board(side);
        let node = self.owner(self.slot_of_first(&[channel]))?;
        let name: Name = channel.into();
        let (number, confirmed, start) = board.add(&name, node.id, listener);
        let subscription = Subscription { board: Arc::clone(board), name, number };
        if let Some(start) = start {
            self.start_ear(side, node, start);
        }
        if let Some(confirmed) = confirmed {
            tokio::select! {
                biased;
                confirmed = confirmed => confirmed.unwrap_or_else(|_| self.shared.open())?,
                () = self.shared.sleep(CONFIRMED_WITHIN) => {
                    let detail = "the server has not confirmed the subscription in time";
                    let error = Error::new(ErrorKind::Unreachable, DOING, detail);
                    return Err(error.at(&*self.shared.shown));
                }
            }
        }
        Ok(subscription)
    }

    fn board(&self, side: Side) -> &Arc<Board> {
        match side {
            Side::Front => &self.front,
            Side::Back => &self.back,
        }
    }

    fn start_ear(&self, side: Side, node: Arc<Node>, start: board::Start) {
        let cluster = match &self.topology {
            Topology::One(_) => None,
            Topology::Cluster(cluster) => Some(Arc::clone(cluster)),
        };
        let ear = Ear {
            shared: Arc::clone(&self.shared),
            board: Arc::clone(self.board(side)),
            node,
            bell: start.0,
            cluster,
            sharded: self.facts().sharded,
        };
        self.shared.spawn(side, ear.listen());
    }

    fn close(&self) {
        self.shared.close();
        for node in self.masters() {
            node.let_go();
        }
    }
}

/// Listens to channels where their slots are, for as long as the link lives.
async fn follow(inner: Arc<Inner>, cluster: Arc<Cluster>) {
    let mut epoch = 0;
    loop {
        epoch = inner.shared.disturbances.after(epoch).await;
        for side in [Side::Front, Side::Back] {
            let owner = |name: &[u8]| cluster.owner(slot_of(name)).map(|node| node.id);
            for (id, start) in inner.board(side).follow(owner) {
                if let Some(node) = cluster.masters().into_iter().find(|node| node.id == id) {
                    inner.start_ear(side, node, start);
                }
            }
        }
    }
}

/// A call whose parts are borrowed.
struct Borrowed<'c> {
    script: &'static Script,
    keys: Vec<&'c [u8]>,
    args: Vec<&'c [u8]>,
}

impl<'c> Borrowed<'c> {
    fn of(call: &'c Call) -> Borrowed<'c> {
        Borrowed {
            script: call.script,
            keys: call.keys.iter().map(Vec::as_slice).collect(),
            args: call.args.iter().map(Vec::as_slice).collect(),
        }
    }

    fn what(&self) -> What<'_> {
        What::Script { script: self.script, keys: &self.keys, args: &self.args }
    }
}

/// Hears what is said on a channel, until it is dropped.
pub(crate) struct Subscription {
    board: Arc<Board>,
    name: Name,
    number: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.board.remove(&self.name, self.number);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&String::from_utf8_lossy(&self.name)).finish()
    }
}
