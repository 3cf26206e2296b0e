//! A Redis master with replicas under Sentinels.

use std::process::Command;
use std::time::Duration;

use super::super::{Program, Server, find, wait_until};
use super::{Options, Redis};
use crate::proxy::Proxy;

/// How long a failover may take, or the Sentinels to find each other.
const PATIENCE: Duration = Duration::from_secs(60);

/// A master, two replicas and three Sentinels, which call the master `main`.
///
/// Clients and Sentinels reach each server through a proxy of its own, so that it can be cut off.
#[derive(Debug)]
pub struct Sentinels {
    servers: Vec<Redis>,
    proxies: Vec<Proxy>,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts them, and waits until all know of each other. A master that does not answer for one
    /// and a half seconds is taken for dead.
    ///
    /// # Panics
    ///
    /// If they do not start: with their logs.
    pub fn start() -> Sentinels {
        Sentinels::patient(Duration::from_millis(1500))
    }

    /// As [`Sentinels::start`]; a master that does not answer for this long is taken for dead.
    ///
    /// # Panics
    ///
    /// If they do not start: with their logs.
    pub fn patient(down_after: Duration) -> Sentinels {
        let master = Redis::start();
        let mut servers = vec![master];
        let mut proxies = vec![Proxy::start(servers[0].addr())];
        for _ in 0..2 {
            let replica_of = Some(proxies[0].port());
            servers.push(Redis::with(Options { replica_of, ..Options::default() }));
        }
        proxies.extend(servers[1..].iter().map(|server| Proxy::start(server.addr())));
        for (server, proxy) in servers.iter().zip(&proxies) {
            server.cli(&["CONFIG", "SET", "replica-announce-ip", "127.0.0.1"]);
            server.cli(&["CONFIG", "SET", "replica-announce-port", &proxy.port().to_string()]);
            server.cli(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        }
        // The master learns of a replica's announced port when the replica connects.
        for replica in &servers[1..] {
            replica.cli(&["REPLICAOF", "NO", "ONE"]);
            replica.cli(&["REPLICAOF", "127.0.0.1", &proxies[0].port().to_string()]);
        }
        wait_until("both replicas in touch", PATIENCE, || {
            let replication = servers[0].cli(&["INFO", "replication"]);
            let online = replication.matches("state=online").count();
            if online == 2 { Ok(()) } else { Err(replication) }
        });
        let sentinels = (0..3).map(|_| sentinel(proxies[0].port(), down_after)).collect();
        let all = Sentinels { servers, proxies, sentinels };
        for at in 0..3 {
            wait_until("the Sentinels to know each other", PATIENCE, || all.knows_all(at));
        }
        all
    }

    /// The servers; the first was the master at the beginning.
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// What stands before each of the servers.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// The Sentinels' processes.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// `redis+sentinel://host,host,host/main`.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|s| s.addr().to_string()).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }

    /// Which of the servers the Sentinels that run call the master.
    ///
    /// # Panics
    ///
    /// If none answers.
    pub fn master(&self) -> usize {
        let named = (0..3).find_map(|at| {
            let answer = self.ask(at, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]).ok()?;
            answer.lines().nth(1)?.parse::<u16>().ok()
        });
        let port = named.unwrap_or_else(|| panic!("no Sentinel names a master"));
        let found = self.proxies.iter().position(|proxy| proxy.port() == port);
        found.unwrap_or_else(|| panic!("the Sentinels name a strange master at port {port}"))
    }

    /// Waits until another server than this one is called the master, and calls itself so.
    ///
    /// # Panics
    ///
    /// If that takes too long.
    pub fn wait_for_another_than(&self, before: usize) -> usize {
        wait_until("another master", PATIENCE, || {
            let master = self.master();
            let role = self.servers[master].try_cli(&["ROLE"])?;
            if master != before && role.starts_with("master") { Ok(()) } else { Err(role) }
        });
        self.master()
    }

    /// Has the Sentinels make another server the master, while the master lives.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub fn fail_over(&self) -> usize {
        let before = self.master();
        wait_until("the Sentinels to agree to a failover", PATIENCE, || {
            self.ask(0, &["SENTINEL", "FAILOVER", "main"]).map(drop)
        });
        self.wait_for_another_than(before)
    }

    fn knows_all(&self, at: usize) -> Result<(), String> {
        let told = self.ask(at, &["SENTINEL", "MASTER", "main"])?;
        let lines: Vec<&str> = told.lines().collect();
        let said = |name| {
            let found = lines.iter().position(|line| *line == name)?;
            lines.get(found + 1).copied()
        };
        let known = said("num-slaves") == Some("2") && said("num-other-sentinels") == Some("2");
        if known && said("flags") == Some("master") { Ok(()) } else { Err(told) }
    }

    fn ask(&self, at: usize, words: &[&str]) -> Result<String, String> {
        cli(self.sentinels[at].port(), words)
    }
}

fn sentinel(master: u16, down_after: Duration) -> Server {
    let make = move |place: &super::super::Place| {
        let config = format!(
            "port {}\nbind 127.0.0.1\n\
             sentinel monitor main 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds main {}\n\
             sentinel failover-timeout main 6000\n",
            place.port(),
            down_after.as_millis(),
        );
        let path = place.file("sentinel.conf");
        // It writes there what it learns; at a restart it goes on from that.
        if !path.exists() {
            place.write("sentinel.conf", &config);
        }
        Program::new(find(&["redis-server"])).arg(path).arg("--sentinel")
    };
    let ready = |place: &super::super::Place| cli(place.port(), &["PING"]).map(drop);
    Server::start("redis-sentinel", 1, make, ready)
}

/// What `redis-cli` prints for a command to a server without a password.
pub(super) fn cli(port: u16, words: &[&str]) -> Result<String, String> {
    std::net::TcpStream::connect(("127.0.0.1", port)).map_err(|e| e.to_string())?;
    let mut cli = Command::new(find(&["redis-cli"]));
    cli.args(["-e", "-h", "127.0.0.1", "-p", &port.to_string()]).args(words);
    let output = cli.output().map_err(|e| format!("redis-cli: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned());
    }
    Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}
