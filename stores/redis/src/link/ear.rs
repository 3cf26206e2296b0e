//! The connection on which a server tells what is said on channels.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold_core::{Backoff, Error, Result};
use tokio::sync::Notify;

use super::board::{Board, Name};
use super::cluster::Cluster;
use super::dial::Address;
use super::disturbance::Cause;
use super::node::Node;
use super::pipe::{Broken, Pipe};
use super::refusal::{self, Refusal};
use super::resp::Reply;
use super::shared::Shared;

/// How often an ear looks at the clock while it listens to anything.
const TICK: Duration = Duration::from_millis(500);
/// After how long without a word the server is asked whether it is there.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// After how long without a word the connection is given up.
const SILENT_AFTER: Duration = Duration::from_secs(3);
/// The waits between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Listens at one node, for one side of a link.
pub(crate) struct Ear {
    pub(crate) shared: Arc<Shared>,
    pub(crate) board: Arc<Board>,
    pub(crate) node: Arc<Node>,
    pub(crate) bell: Arc<Notify>,
    pub(crate) cluster: Option<Arc<Cluster>>,
    /// Whether channels belong to slots.
    pub(crate) sharded: bool,
}

/// What was asked of the server and not answered yet.
enum Asked {
    Subscribe(Name),
    Unsubscribe(Name),
    Ping,
}

/// What stands on one connection.
struct Hearing {
    pipe: Pipe,
    /// What the server was told last, of each channel.
    told: HashSet<Name>,
    asked: VecDeque<Asked>,
    /// What was refused for now.
    again: HashSet<Name>,
    last_word: Instant,
}

impl Hearing {
    /// Whether there is anything to look at the clock for.
    fn is_busy(&self) -> bool {
        !self.told.is_empty() || !self.asked.is_empty() || !self.again.is_empty()
    }
}

impl Ear {
    /// Listens for as long as the link lives.
    pub(crate) async fn listen(self) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, self.shared.seed());
        let mut cut = false;
        loop {
            while self.board.all_at(self.node.id).is_empty() {
                self.bell.notified().await;
            }
            match self.node.dial(&self.shared).await {
                Ok((dialed, generation)) => {
                    if cut {
                        self.disturb();
                    }
                    let since = Instant::now();
                    self.hear(dialed.pipe, generation).await;
                    for name in self.board.all_at(self.node.id) {
                        self.board.lose(&name);
                    }
                    cut = self.board.is_waited_for(self.node.id);
                    if cut {
                        self.disturb();
                    }
                    if since.elapsed() >= SILENT_AFTER {
                        backoff.reset();
                        continue;
                    }
                }
                Err(error) => {
                    self.shared.look_again.notify_one();
                    if !error.kind().is_transient() {
                        let error = error.at(&*self.shared.shown);
                        for name in self.board.all_at(self.node.id) {
                            self.board.fail(&name, &error);
                        }
                    }
                    self.board.sweep(self.node.id);
                }
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    fn disturb(&self) {
        self.shared.disturbances.add(Cause::Reconnected, self.node.slots());
    }

    /// Until the connection breaks or is given up.
    async fn hear(&self, pipe: Pipe, generation: u64) {
        let mut hearing = Hearing {
            pipe,
            told: HashSet::new(),
            asked: VecDeque::new(),
            again: HashSet::new(),
            last_word: Instant::now(),
        };
        for name in self.board.all_at(self.node.id) {
            self.look_at(&mut hearing, name);
        }
        let given_up = self.node.after_generation(generation);
        let tick = tokio::time::sleep(TICK);
        tokio::pin!(given_up, tick);
        loop {
            let busy = hearing.is_busy();
            tokio::select! {
                biased;
                reply = hearing.pipe.reply() => match reply {
                    Ok(reply) => self.take(&mut hearing, reply),
                    Err(_) => return,
                },
                () = self.bell.notified() => {
                    for name in self.board.changed(self.node.id) {
                        self.look_at(&mut hearing, name);
                    }
                    if !busy {
                        hearing.last_word = Instant::now();
                        tick.as_mut().reset(tokio::time::Instant::now() + TICK);
                    }
                }
                () = &mut given_up => return,
                () = &mut tick, if busy => {
                    if self.tick(&mut hearing).is_err() {
                        return;
                    }
                    tick.as_mut().reset(tokio::time::Instant::now() + TICK);
                }
            }
        }
    }

    /// Tells the server of a channel what it was not told yet.
    fn look_at(&self, hearing: &mut Hearing, name: Name) {
        let wanted = self.board.wants(&name, self.node.id);
        let told = hearing.told.contains(&name);
        if wanted && !told {
            let word: &[u8] = if self.sharded { b"SSUBSCRIBE" } else { b"SUBSCRIBE" };
            hearing.pipe.say(&[word, &name]);
            hearing.told.insert(Arc::clone(&name));
            hearing.asked.push_back(Asked::Subscribe(name));
        } else if !wanted && told {
            let word: &[u8] = if self.sharded { b"SUNSUBSCRIBE" } else { b"UNSUBSCRIBE" };
            hearing.pipe.say(&[word, &name]);
            hearing.told.remove(&name);
            hearing.asked.push_back(Asked::Unsubscribe(name));
        } else if wanted {
            self.settle(hearing, &name);
        }
    }

    /// Confirms a channel if nothing of it is under way.
    fn settle(&self, hearing: &Hearing, name: &Name) {
        let under_way = hearing.asked.iter().any(|asked| match asked {
            Asked::Subscribe(other) | Asked::Unsubscribe(other) => other == name,
            Asked::Ping => false,
        });
        if !under_way && hearing.told.contains(name) {
            self.board.confirm(name, self.node.id);
        }
    }

    fn take(&self, hearing: &mut Hearing, reply: Reply) {
        hearing.last_word = Instant::now();
        match reply {
            Reply::Push(items) | Reply::Array(items) => self.take_word(hearing, &items),
            Reply::Error(text) => self.take_refusal(hearing, &text),
            // The answer to a PING, under RESP3.
            _ => drop(hearing.asked.pop_front()),
        }
    }

    fn take_word(&self, hearing: &mut Hearing, items: &[Reply]) {
        let word = |at: usize| items.get(at).and_then(|item| item.bytes().ok());
        let name = word(1).unwrap_or_default();
        match word(0).unwrap_or_default() {
            b"message" | b"smessage" => self.board.deliver(name, word(2).unwrap_or_default()),
            b"subscribe" | b"ssubscribe" => {
                if let Some(Asked::Subscribe(name)) = hearing.asked.pop_front() {
                    self.settle(hearing, &name);
                }
            }
            b"unsubscribe" | b"sunsubscribe" => match hearing.asked.front() {
                Some(Asked::Unsubscribe(asked)) if **asked == *name => {
                    hearing.asked.pop_front();
                }
                // Unasked for: the slot has gone elsewhere.
                _ => self.lost(hearing, name),
            },
            b"pong" => drop(hearing.asked.pop_front()),
            _ => {}
        }
    }

    /// The server does not tell of a channel any more.
    fn lost(&self, hearing: &mut Hearing, name: &[u8]) {
        let Some(name) = hearing.told.take(name) else { return };
        self.board.lose(&name);
        self.shared.look_again.notify_one();
        // Asking again brings the word of where it is.
        self.look_at(hearing, name);
    }

    fn take_refusal(&self, hearing: &mut Hearing, text: &str) {
        let Some(Asked::Subscribe(name)) = hearing.asked.pop_front() else { return };
        hearing.told.remove(&name);
        hearing.again.insert(Arc::clone(&name));
        match (refusal::refusal(text), &self.cluster) {
            (Refusal::Moved { slot, host, port }, Some(cluster)) => {
                let host = if host.is_empty() { self.host() } else { host };
                cluster.moved(&self.shared, slot, &Address { host, port });
            }
            (Refusal::NotNow, _) => self.shared.look_again.notify_one(),
            _ => self.board.fail(&name, &refused(text).at(&*self.shared.shown)),
        }
    }

    fn host(&self) -> String {
        self.node.home().map(|address| address.host).unwrap_or_default()
    }

    fn tick(&self, hearing: &mut Hearing) -> Result<(), Broken> {
        self.board.sweep(self.node.id);
        for name in self.board.changed(self.node.id) {
            self.look_at(hearing, name);
        }
        // What was refused may not be any more.
        for name in std::mem::take(&mut hearing.again) {
            self.look_at(hearing, name);
        }
        let silent = hearing.last_word.elapsed();
        if silent >= SILENT_AFTER && !hearing.asked.is_empty() {
            return Err(Broken::Silent);
        }
        if silent >= ASK_AFTER && hearing.asked.is_empty() {
            hearing.pipe.say(&[b"PING"]);
            hearing.asked.push_back(Asked::Ping);
        }
        Ok(())
    }
}

fn refused(text: &str) -> Error {
    let error = refusal::error(text);
    if text.starts_with("NOPERM") {
        return error.advise(
            "have the user allowed to listen: ACL SETUSER name +subscribe +ssubscribe \
             +unsubscribe +sunsubscribe +ping &*",
        );
    }
    error
}
