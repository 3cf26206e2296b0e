//! A Redis Cluster of six nodes.

use std::time::Duration;

use super::super::{Place, Program, Server, find, wait_until};
use super::sentinel::cli;
use crate::proxy::Proxy;

/// How long the nodes may take to agree.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many nodes have slots at the beginning; as many are their replicas.
const MASTERS: usize = 3;

/// The slots of the first masters.
const RANGES: [(u16, u16); MASTERS] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// Three masters and a replica of each.
///
/// Clients and replicas reach each node through a proxy of its own, so that it can be cut off; the
/// nodes' own talk of who lives goes past it.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    proxies: Vec<Proxy>,
}

impl Cluster {
    /// Starts the nodes, and waits until they agree and the replicas are in touch.
    ///
    /// # Panics
    ///
    /// If they do not: with their logs.
    pub fn start() -> Cluster {
        let nodes: Vec<Server> = (0..2 * MASTERS).map(|_| node()).collect();
        let proxies = nodes.iter().map(|node| Proxy::start(node.addr())).collect();
        let cluster = Cluster { nodes, proxies };
        for (at, proxy) in cluster.proxies.iter().enumerate() {
            let port = proxy.port().to_string();
            cluster.cli(at, &["CONFIG", "SET", "cluster-announce-port", &port]);
        }
        for (at, (first, last)) in RANGES.into_iter().enumerate() {
            let range = [first.to_string(), last.to_string()];
            cluster.cli(at, &["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
            cluster.cli(at, &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]);
        }
        let first = &cluster.nodes[0];
        let bus = first.place().port_at(1).to_string();
        for at in 1..cluster.nodes.len() {
            cluster.cli(at, &["CLUSTER", "MEET", "127.0.0.1", &first.port().to_string(), &bus]);
        }
        cluster.wait_until_all_know_all();
        for at in MASTERS..cluster.nodes.len() {
            let master = cluster.id(at - MASTERS);
            cluster.cli(at, &["CLUSTER", "REPLICATE", &master]);
        }
        for at in 0..MASTERS {
            wait_until("a replica in touch", PATIENCE, || {
                let told = cluster.try_cli(at, &["INFO", "replication"])?;
                if told.contains("state=online") { Ok(()) } else { Err(told) }
            });
        }
        // Every node knows who is whose replica, and that all is well.
        for at in 0..cluster.nodes.len() {
            wait_until("the nodes to agree", PATIENCE, || {
                let told = cluster.try_cli(at, &["CLUSTER", "NODES"])?;
                let replicas = told.lines().filter(|line| line.contains("slave")).count();
                let state = cluster.try_cli(at, &["CLUSTER", "INFO"])?;
                let well = replicas == MASTERS && state.contains("cluster_state:ok");
                if well { Ok(()) } else { Err(told + &state) }
            });
        }
        cluster
    }

    /// The nodes' processes: first the masters of the beginning, then a replica of each.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// What stands before each of the nodes.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// `redis+cluster://host,host,…` with all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// What `redis-cli` prints for a command to a node.
    ///
    /// # Panics
    ///
    /// If the node does not answer, or answers with an error.
    pub fn cli(&self, node: usize, words: &[&str]) -> String {
        self.try_cli(node, words).unwrap_or_else(|error| panic!("{words:?} at {node}: {error}"))
    }

    /// As [`Cluster::cli`].
    ///
    /// # Errors
    ///
    /// If the node does not answer, or answers with an error.
    pub fn try_cli(&self, node: usize, words: &[&str]) -> Result<String, String> {
        cli(self.nodes[node].port(), words)
    }

    /// The node's id.
    pub fn id(&self, node: usize) -> String {
        self.cli(node, &["CLUSTER", "MYID"])
    }

    /// The node that has a slot, by the word of this node, if it is a master that lives.
    ///
    /// # Errors
    ///
    /// What the node said instead.
    pub fn owner(&self, slot: u16, asked: usize) -> Result<usize, String> {
        let told = self.try_cli(asked, &["CLUSTER", "NODES"])?;
        let owner = told.lines().find(|line| has_slot(line, slot)).and_then(|line| {
            let port = line.split(' ').nth(1)?.split('@').next()?.rsplit(':').next()?;
            let port: u16 = port.parse().ok()?;
            self.proxies.iter().position(|proxy| proxy.port() == port)
        });
        owner.ok_or(told)
    }

    /// Waits until another node than this one has the slot, by the word of a third.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_for_another_owner(&self, slot: u16, before: usize) -> usize {
        let asked = (0..MASTERS).find(|at| *at != before).unwrap_or_default();
        let mut owner = before;
        wait_until("another owner of the slot", PATIENCE, || {
            owner = self.owner(slot, asked)?;
            if owner != before { Ok(()) } else { Err("still the same".to_owned()) }
        });
        owner
    }

    /// Begins to move a slot: its keys may be at either node from now on.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.cli(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.id(from)]);
        self.cli(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.id(to)]);
    }

    /// Moves the keys of a slot that has begun to move.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        loop {
            let keys = self.cli(from, &["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                return;
            }
            let port = self.nodes[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(&keys);
            self.cli(from, &words);
        }
    }

    /// Ends the move of a slot whose keys have been moved.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to));
        for at in [to, from] {
            self.cli(at, &["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    fn wait_until_all_know_all(&self) {
        for at in 0..self.nodes.len() {
            wait_until("the nodes to know each other", PATIENCE, || {
                let told = self.try_cli(at, &["CLUSTER", "NODES"])?;
                let known = told.lines().filter(|line| line.contains("connected")).count();
                let greeted = !told.contains("handshake") && known == self.nodes.len();
                if greeted { Ok(()) } else { Err(told) }
            });
        }
    }
}

fn node() -> Server {
    let make = |place: &Place| {
        let data = place.data();
        if !data.exists() {
            std::fs::create_dir(&data).unwrap_or_else(|e| panic!("{}: {e}", data.display()));
        }
        Program::new(find(&["redis-server"]))
            .args(["--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes"])
            .args(["--port", &place.port().to_string()])
            .args(["--cluster-port", &place.port_at(1).to_string()])
            .args(["--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no"])
            .args(["--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(data)
    };
    let ready = |place: &Place| cli(place.port(), &["PING"]).map(drop);
    Server::start("redis-cluster", 2, make, ready)
}

/// Whether a line of `CLUSTER NODES` is of a master that has this slot.
fn has_slot(line: &str, slot: u16) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    let is_master = words.get(2).is_some_and(|flags| {
        flags.split(',').any(|flag| flag == "master") && !flags.contains("fail")
    });
    let ranges = words.iter().skip(8).filter(|word| !word.starts_with('['));
    is_master
        && ranges
            .filter_map(|word| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                Some((first.parse::<u16>().ok()?, last.parse::<u16>().ok()?))
            })
            .any(|(first, last)| (first..=last).contains(&slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_slot_is_read_from_what_a_node_says() {
        let line = "07c3 127.0.0.1:30004@31004 master - 0 142 4 connected 0-5 7 [9-<-ab]";
        assert!(has_slot(line, 0) && has_slot(line, 7) && has_slot(line, 5));
        assert!(!has_slot(line, 6) && !has_slot(line, 9));
        assert!(!has_slot(&line.replace("master", "master,fail"), 7));
        assert!(!has_slot(&line.replace("master", "slave"), 7));
    }
}
