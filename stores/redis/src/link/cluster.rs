//! Which node of a cluster has which slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use leasehold_core::{Backoff, Error, ErrorKind, Result};
use tokio::task::JoinSet;

use super::dial::{Address, Dialer, within};
use super::disturbance::{Cause, SLOTS, Slots};
use super::node::{Node, Place};
use super::refusal::{self, DOING};
use super::resp::Reply;
use super::shared::Shared;

/// How long a node may take to tell the map.
const ASK: Duration = Duration::from_secs(2);
/// How many nodes are asked at once.
const ASKED_MAX: usize = 5;
/// The waits between looks at the map while a node is missing.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// How often the map is looked at without a reason.
const REGULARLY: Duration = Duration::from_secs(60);
/// The most nodes of a cluster (its own specification says a thousand).
const NODES_MAX: usize = 4096;

/// The nodes of a cluster, as far as we know.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    map: RwLock<Map>,
    ids: Mutex<HashMap<Address, u64>>,
}

#[derive(Debug)]
struct Map {
    nodes: HashMap<Address, Member>,
    owners: Vec<Option<Arc<Node>>>,
}

#[derive(Debug)]
struct Member {
    node: Arc<Node>,
    replicas: Vec<Address>,
}

/// A range of slots as a node tells it.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    first: u16,
    last: u16,
    master: Address,
    replicas: Vec<Address>,
}

/// What a node says of the cluster.
struct Told {
    ranges: Vec<Range>,
    /// Whether it stands on the side of the majority.
    well: bool,
    epoch: u64,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>) -> Cluster {
        let owners = vec![None; usize::from(SLOTS)];
        let map = Map { nodes: HashMap::new(), owners };
        Cluster { seeds, map: RwLock::new(map), ids: Mutex::default() }
    }

    /// The node that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.owners.get(usize::from(slot)).cloned().flatten()
    }

    /// All nodes that have slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut masters: Vec<_> = map.nodes.values().map(|member| member.node.clone()).collect();
        masters.retain(|node| !node.slots().0.is_empty());
        masters.sort_by_key(|node| node.id);
        masters
    }

    /// The node at an address, perhaps one not seen before.
    pub(crate) fn node_at(&self, address: &Address) -> Arc<Node> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let id = self.id_of(address);
        let member = map.nodes.entry(address.clone()).or_insert_with(|| {
            let place = Place::Cluster(address.clone());
            Member { node: Arc::new(Node::new(id, place, Slots::default())), replicas: vec![] }
        });
        Arc::clone(&member.node)
    }

    fn id_of(&self, address: &Address) -> u64 {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ids.len() as u64 + 1;
        *ids.entry(address.clone()).or_insert(next)
    }

    /// A node says that another has this slot.
    pub(crate) fn moved(&self, shared: &Shared, slot: u16, to: &Address) -> Arc<Node> {
        let node = self.node_at(to);
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let cause = map.cause(slot, to);
        if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
            *owner = Some(Arc::clone(&node));
        }
        drop(map);
        if let Some(cause) = cause {
            shared.disturbances.add(cause, Slots::one(slot));
        }
        shared.look_again.notify_one();
        node
    }

    /// Looks at the map whenever there is a reason to, for as long as the link lives.
    pub(crate) async fn watch(self: Arc<Self>, shared: Arc<Shared>) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1, shared.seed());
        loop {
            if self.is_whole() {
                backoff.reset();
                let _ = tokio::time::timeout(REGULARLY, shared.look_again.notified()).await;
            }
            // What is told is told again at the next look.
            let _ = self.look(&shared).await;
            tokio::time::sleep(backoff.next_wait()).await;
        }
    }

    /// Whether every slot has an owner that is reached or was not needed yet.
    fn is_whole(&self) -> bool {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let owned = map.owners.iter().all(Option::is_some);
        drop(map);
        owned && self.masters().iter().all(|node| !node.is_missed())
    }

    /// Asks several nodes for the map, and takes the first that stands with the majority.
    pub(crate) async fn look(&self, shared: &Shared) -> Result<()> {
        let mut addresses: Vec<Address> = self.masters().iter().filter_map(|n| n.home()).collect();
        for seed in &self.seeds {
            if !addresses.contains(seed) {
                addresses.push(seed.clone());
            }
        }
        // Not always the same ones first.
        let start = usize::try_from(shared.seed() % addresses.len().max(1) as u64).unwrap_or(0);
        addresses.rotate_left(start);
        let mut best: Option<Told> = None;
        let mut refused = None;
        for some in addresses.chunks(ASKED_MAX) {
            let mut asked = JoinSet::new();
            for address in some {
                let (dialer, address) = (shared.dialer.clone(), address.clone());
                asked.spawn(async move { ask(&dialer, &address).await });
            }
            while let Some(answer) = asked.join_next().await {
                match answer {
                    Ok(Ok(told)) if told.well => {
                        self.apply(shared, told.ranges);
                        return Ok(());
                    }
                    Ok(Ok(told)) => {
                        if best.as_ref().is_none_or(|best| best.epoch < told.epoch) {
                            best = Some(told);
                        }
                    }
                    Ok(Err(error)) => refused = Some(error),
                    Err(_) => {}
                }
            }
        }
        match (best, refused) {
            (Some(told), _) => {
                self.apply(shared, told.ranges);
                Ok(())
            }
            (None, Some(error)) => Err(error),
            (None, None) => {
                Err(Error::new(ErrorKind::Unreachable, DOING, "no node of the cluster answered"))
            }
        }
    }

    fn apply(&self, shared: &Shared, ranges: Vec<Range>) {
        let nodes: Vec<_> = ranges.iter().map(|range| self.node_at(&range.master)).collect();
        let mut changes: HashMap<(Cause, u64), Slots> = HashMap::new();
        let mut slots: HashMap<u64, Slots> = HashMap::new();
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        for (range, node) in ranges.iter().zip(&nodes) {
            let owned = slots.entry(node.id).or_default();
            for slot in range.first..=range.last.min(SLOTS - 1) {
                owned.push(slot);
                if let Some(cause) = map.cause(slot, &range.master) {
                    changes.entry((cause, node.id)).or_default().push(slot);
                }
                if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
                    *owner = Some(Arc::clone(node));
                }
            }
        }
        for range in ranges {
            if let Some(member) = map.nodes.get_mut(&range.master) {
                member.replicas = range.replicas;
            }
        }
        // A node without slots is let go of, unless it was only just heard of.
        let mut gone = Vec::new();
        map.nodes.retain(|_, member| {
            let now = slots.remove(&member.node.id).unwrap_or_default();
            let keep = !now.0.is_empty() || member.node.slots().0.is_empty();
            member.node.set_slots(now);
            if !keep {
                gone.push(Arc::clone(&member.node));
            }
            keep
        });
        drop(map);
        for node in gone {
            node.let_go();
        }
        for ((cause, _), slots) in changes {
            shared.disturbances.add(cause, slots);
        }
    }
}

impl Map {
    /// What it means that a slot is at this address, if it was elsewhere before.
    fn cause(&self, slot: u16, now: &Address) -> Option<Cause> {
        let before = self.owners.get(usize::from(slot))?.as_ref()?.home()?;
        if before == *now {
            return None;
        }
        let promoted = self.nodes.get(&before).is_some_and(|member| member.replicas.contains(now));
        Some(if promoted { Cause::Failover } else { Cause::Moved })
    }
}

async fn ask(dialer: &Dialer, address: &Address) -> Result<Told> {
    let asked = async {
        let mut pipe = dialer.dial_plainly(address).await?;
        pipe.say(&[b"CLUSTER", b"SLOTS"]);
        pipe.say(&[b"CLUSTER", b"INFO"]);
        let slots = pipe.reply().await.map_err(|broken| broken.error())?;
        let info = pipe.reply().await.map_err(|broken| broken.error())?;
        let ranges = read(slots, address)?;
        let info = info.str().unwrap_or_default();
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        let epoch = epoch.and_then(|epoch| epoch.trim().parse().ok());
        let well = !info.contains("cluster_state:fail");
        Ok(Told { ranges, well, epoch: epoch.unwrap_or_default() })
    };
    within(ASK, asked).await.map_err(|error| error.at(address.to_string()))
}

/// `CLUSTER SLOTS`: first, last, then the master and its replicas, each with host and port first.
fn read(slots: Reply, asked: &Address) -> Result<Vec<Range>> {
    if let Reply::Error(text) = &slots {
        return Err(refusal::error(text));
    }
    let number = |reply: &Reply| reply.int().ok().and_then(|n| u16::try_from(n).ok());
    let address = |node: &Reply| {
        let [host, port, ..] = node.array().ok()? else { return None };
        let host = host.str().ok().filter(|host| !host.is_empty() && *host != "?");
        let host = host.unwrap_or(&asked.host).to_owned();
        Some(Address { host, port: number(port)? })
    };
    let range = |range: &Reply| {
        let [first, last, master, replicas @ ..] = range.array().ok()? else { return None };
        Some(Range {
            first: number(first)?,
            last: number(last)?,
            master: address(master)?,
            replicas: replicas.iter().filter_map(address).collect(),
        })
    };
    let told = slots.array()?;
    let ranges: Option<Vec<Range>> = told.iter().map(range).collect();
    match ranges {
        Some(ranges) if ranges.len() <= NODES_MAX * 4 => Ok(ranges),
        _ => Err(Error::new(ErrorKind::Corrupt, DOING, "what the node says of the slots is odd")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_read_and_an_unnamed_host_is_the_one_asked() {
        let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        let node = |host: Reply, port| {
            Reply::Array(vec![host, Reply::Int(port), bulk("id"), Reply::Array(vec![])])
        };
        let range = Reply::Array(vec![
            Reply::Int(0),
            Reply::Int(5460),
            node(bulk("10.0.0.1"), 6379),
            node(Reply::Nil, 6380),
        ]);
        let asked = Address { host: "here".into(), port: 1 };
        let ranges = read(Reply::Array(vec![range]), &asked).unwrap();
        let address = |host: &str, port| Address { host: host.into(), port };
        assert_eq!(
            ranges,
            [Range {
                first: 0,
                last: 5460,
                master: address("10.0.0.1", 6379),
                replicas: vec![address("here", 6380)],
            }]
        );
        let odd = Reply::Array(vec![Reply::Array(vec![Reply::Int(1)])]);
        assert_eq!(read(odd, &asked).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
