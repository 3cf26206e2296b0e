//! One server that keeps data, and our connections to it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::{Backoff, Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use super::dial::{Address, Dialed, Identity};
use super::disturbance::{Cause, Slots};
use super::durable::Group;
use super::mux::{End, Mux};
use super::pipe::Broken;
use super::refusal::{self, DOING};
use super::sentinel::Sentinels;
use super::shared::{Shared, Side};

/// How long a call waits for a connection that is being made.
const PATIENCE: Duration = Duration::from_secs(1);
/// The waits between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// A connection that lasted less than this is followed by a wait.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// What a connection is for. Each is made when it is first needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    /// What somebody waits for on the runtime that the store was connected in.
    Front,
    /// What somebody waits for elsewhere.
    Back,
    /// Renewals, which nothing else may delay.
    Renewals,
    /// What waits for replicas or for a disk.
    Slow,
}

impl Line {
    fn side(self) -> Side {
        if self == Line::Front { Side::Front } else { Side::Back }
    }
}

/// Where a node is found.
#[derive(Debug)]
pub(crate) enum Place {
    /// A server of its own.
    Single(Address),
    /// Whichever server the Sentinels call the master.
    Sentinel(Arc<Sentinels>),
    /// A node of a cluster.
    Cluster(Address),
}

/// A server that keeps data: one, or one of many in a cluster.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) place: Place,
    lines: [Connection; 4],
    /// Which server it was when last reached.
    seen: Mutex<Option<Identity>>,
    /// Rises when connections made before are to be given up.
    generation: watch::Sender<u64>,
    slots: Mutex<Slots>,
    retired: AtomicBool,
    pub(crate) group: Group,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("id", &self.id).field("place", &self.place).finish()
    }
}

impl Node {
    pub(crate) fn new(id: u64, place: Place, slots: Slots) -> Node {
        Node {
            id,
            place,
            lines: [Line::Front, Line::Back, Line::Renewals, Line::Slow].map(Connection::new),
            seen: Mutex::new(None),
            generation: watch::Sender::new(0),
            slots: Mutex::new(slots),
            retired: AtomicBool::new(false),
            group: Group::default(),
        }
    }

    pub(crate) fn slots(&self) -> Slots {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_slots(&self, slots: Slots) {
        *self.slots.lock().unwrap_or_else(PoisonError::into_inner) = slots;
    }

    /// The connection for this, once it is there; waits for it a little.
    ///
    /// # Errors
    ///
    /// Why it is not there.
    pub(crate) async fn mux(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        line: Line,
    ) -> Result<Arc<Mux>> {
        let connection = &self.lines[line as usize];
        if let State::Up(mux) = &*connection.state.borrow()
            && !mux.has_ended()
        {
            return Ok(Arc::clone(mux));
        }
        shared.open()?;
        if !connection.started.swap(true, Ordering::AcqRel) {
            shared.at_back(keep(Arc::clone(shared), Arc::clone(self), line));
        }
        let mut state = connection.state.subscribe();
        let settled = |state: &State| match state {
            State::Up(mux) => !mux.has_ended(),
            State::Down(error) => error.as_ref().is_some_and(|e| !e.kind().is_transient()),
        };
        let waited = tokio::select! {
            biased;
            settled = state.wait_for(settled) => settled.ok().map(|state| state.clone()),
            () = shared.sleep(PATIENCE) => None,
        };
        match waited.unwrap_or_else(|| connection.state.borrow().clone()) {
            State::Up(mux) => Ok(mux),
            State::Down(Some(error)) => Err(error),
            State::Down(None) => {
                let detail = "the connection is not there yet";
                Err(Error::new(ErrorKind::Unreachable, DOING, detail).at(&*shared.shown))
            }
        }
    }

    /// This server says that it is no master any more: gives its connections up.
    pub(crate) fn demoted(&self, shared: &Shared, identity: &Identity) {
        let current = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if current.is_some_and(|current| current.address == identity.address) {
            self.give_up(shared, Cause::Failover);
        }
    }

    /// Gives up all connections, since something has happened to the server.
    pub(crate) fn give_up(&self, shared: &Shared, cause: Cause) {
        self.generation.send_modify(|generation| *generation += 1);
        shared.disturbances.add(cause, self.slots());
        shared.look_again.notify_one();
    }

    /// Where the server last was, if it was reached.
    pub(crate) fn address(&self) -> Option<Address> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.as_ref().map(|identity| identity.address.clone())
    }

    /// Where it is by the map of the cluster, or where it last was.
    pub(crate) fn home(&self) -> Option<Address> {
        match &self.place {
            Place::Single(address) | Place::Cluster(address) => Some(address.clone()),
            Place::Sentinel(_) => self.address(),
        }
    }

    /// Whether a connection to it is needed and not there.
    pub(crate) fn is_missed(&self) -> bool {
        self.lines.iter().any(|line| matches!(&*line.state.borrow(), State::Down(Some(_))))
    }

    /// Ends all connections: the node is none of ours any more, or the link is closed.
    pub(crate) fn let_go(&self) {
        self.retired.store(true, Ordering::Release);
        for line in &self.lines {
            if let State::Up(mux) = &*line.state.borrow() {
                mux.end("the store was closed, or the node has left the cluster");
            }
        }
    }

    /// Resolves when connections of this generation are to be given up.
    pub(crate) async fn after_generation(&self, generation: u64) {
        let mut now = self.generation.subscribe();
        if now.wait_for(|now| *now != generation).await.is_err() {
            std::future::pending().await
        }
    }

    /// Makes a connection to the server that is the master now.
    pub(crate) async fn dial(&self, shared: &Shared) -> Result<(Dialed, u64)> {
        let address = match &self.place {
            Place::Single(address) | Place::Cluster(address) => address.clone(),
            Place::Sentinel(sentinels) => sentinels.master().await?,
        };
        let dialed = shared.dialer.dial(&address).await?;
        self.check(&dialed)?;
        let generation = self.confirm(shared, &dialed.identity);
        shared.set_facts(dialed.facts.clone());
        Ok((dialed, generation))
    }

    fn check(&self, dialed: &Dialed) -> Result<()> {
        let clustered = matches!(self.place, Place::Cluster(_));
        let error = match (clustered, dialed.facts.cluster) {
            (true, false) => refusal::error("ERR This instance has cluster support disabled"),
            (false, true) => refusal::error("MOVED"),
            _ if dialed.master => return Ok(()),
            _ => match &self.place {
                Place::Single(_) => refusal::error("READONLY the server's role is replica"),
                Place::Sentinel(_) => Error::new(
                    ErrorKind::Unavailable,
                    DOING,
                    "the Sentinels name a server that is not a master now",
                ),
                Place::Cluster(_) => {
                    Error::new(ErrorKind::Unavailable, DOING, "the node is not a master now")
                }
            },
        };
        Err(error.at(dialed.identity.address.to_string()))
    }

    /// Takes notice of which server was reached; the generation of connections to it.
    fn confirm(&self, shared: &Shared, identity: &Identity) -> u64 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = match &*seen {
            Some(before) if identity.continues(before) => None,
            Some(before) if before.address == identity.address => Some(Cause::Restarted),
            Some(_) => Some(Cause::Failover),
            None => None,
        };
        *seen = Some(identity.clone());
        if let Some(cause) = cause {
            self.generation.send_modify(|generation| *generation += 1);
            shared.disturbances.add(cause, self.slots());
        }
        *self.generation.borrow()
    }
}

/// A connection that is made again and again.
struct Connection {
    state: watch::Sender<State>,
    started: AtomicBool,
}

#[derive(Clone)]
enum State {
    /// And why, if that is known.
    Down(Option<Error>),
    Up(Arc<Mux>),
}

impl Connection {
    fn new(_: Line) -> Connection {
        Connection { state: watch::Sender::new(State::Down(None)), started: AtomicBool::new(false) }
    }
}

/// Keeps a connection: makes it, waits for its end, makes it anew.
async fn keep(shared: Arc<Shared>, node: Arc<Node>, line: Line) {
    let state = &node.lines[line as usize].state;
    let (first, cap) = BACKOFF;
    let mut backoff = Backoff::new(first, cap, shared.seed());
    // Whether callers were told that words may have been lost, and not yet that all is well.
    let mut cut = true;
    let mut ever_up = false;
    loop {
        if node.retired.load(Ordering::Acquire) {
            return;
        }
        // Without its runtime, nobody is left who could ask for this connection.
        let Some(made) = connect(&shared, &node, line).await else { return };
        match made {
            Ok((mux, task, generation)) => {
                if cut && ever_up {
                    shared.disturbances.add(Cause::Reconnected, node.slots());
                }
                (cut, ever_up) = (false, true);
                state.send_replace(State::Up(Arc::clone(&mux)));
                let since = Instant::now();
                let end = watch_over(&node, &mux, task, generation).await;
                let why = end.why.error().at(&*shared.shown);
                state.send_replace(State::Down(Some(why)));
                if end.cut_short {
                    cut = true;
                    shared.disturbances.add(Cause::Reconnected, node.slots());
                }
                if since.elapsed() >= SHORT_LIFE {
                    backoff.reset();
                    continue;
                }
            }
            Err(error) => {
                state.send_replace(State::Down(Some(error.at(&*shared.shown))));
                if ever_up && !cut {
                    cut = true;
                    shared.disturbances.add(Cause::Reconnected, node.slots());
                }
                shared.look_again.notify_one();
            }
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

async fn connect(
    shared: &Arc<Shared>,
    node: &Arc<Node>,
    line: Line,
) -> Option<Result<(Arc<Mux>, JoinHandle<End>, u64)>> {
    let (ours, dialing) = (Arc::clone(node), Arc::clone(shared));
    let made = shared.home(line.side()).spawn(async move {
        let (dialed, generation) = ours.dial(&dialing).await?;
        let (mux, task) = Mux::over(dialed.pipe, dialed.identity);
        Ok((mux, tokio::spawn(task), generation))
    });
    made.await.ok()
}

/// Waits for the end of a connection, and ends it when the node's connections are given up.
async fn watch_over(node: &Node, mux: &Mux, mut task: JoinHandle<End>, generation: u64) -> End {
    let given_up = tokio::select! {
        end = &mut task => return ended(end),
        () = node.after_generation(generation) => "another server has become the master",
    };
    mux.end(given_up);
    ended(task.await)
}

fn ended(end: Result<End, JoinError>) -> End {
    end.unwrap_or(End { why: Broken::Dropped("its runtime has ended"), cut_short: true })
}
