//! etcd: single members and clusters.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::{Certificates, FakeTime, Place, Port, Program, Server, fetched, find, wait_until};

/// How long a member may take for one answer; a stopped one never answers.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a cluster may take to have a leader.
const QUORUM: Duration = Duration::from_secs(60);

/// An etcd that can be run here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Release {
    /// The system's: 3.4 on Debian 12.
    #[default]
    System,
    /// The one that `scripts/test prepare` has fetched.
    Newest,
}

impl Release {
    /// All of them.
    pub const ALL: [Release; 2] = [Release::System, Release::Newest];

    fn path(self) -> PathBuf {
        match self {
            Release::System => find(&["etcd"]),
            Release::Newest => {
                let path = fetched().join("etcd/etcd");
                assert!(path.is_file(), "{}: run scripts/test prepare", path.display());
                path
            }
        }
    }
}

/// How a member is to be run. The default: the system's, whose shortest lease is one second.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Which etcd.
    pub release: Release,
    /// More arguments, as `["--quota-backend-bytes", "65536"]`.
    pub args: Vec<String>,
    /// Its client port speaks TLS, and asks no certificate of the client unless `client_certs`.
    pub tls: bool,
    /// The newest syncs to the disk before it answers, as the system's always does.
    pub durable: bool,
    /// Clients have to show a certificate that its authority has signed.
    pub client_certs: bool,
    /// The wall clock of its members.
    pub time: Option<Arc<FakeTime>>,
}

/// A member's number in its cluster, and the ports on which the members talk to each other.
#[derive(Clone, Debug)]
struct Peers {
    own: usize,
    ports: Arc<Vec<Port>>,
}

/// A member of an etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    server: Server,
    options: Options,
}

impl Etcd {
    /// The system's, alone and empty.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn start() -> Etcd {
        Etcd::with(Options::default())
    }

    /// One alone with these options.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn with(options: Options) -> Etcd {
        let peers = Peers { own: 0, ports: Arc::new(vec![Port::reserve()]) };
        Etcd::member(options, peers, true)
    }

    fn member(options: Options, peers: Peers, alone: bool) -> Etcd {
        let make = {
            let options = options.clone();
            move |place: &Place| options.program(place, &peers)
        };
        // A member of a cluster is healthy only together with others.
        let ready = move |place: &Place| match (alone, health(metrics(place))) {
            (_, Some(true)) | (false, Some(false)) => Ok(()),
            (true, Some(false)) => Err("it has no leader yet".to_owned()),
            (_, None) => Err("it does not serve yet".to_owned()),
        };
        Etcd { server: Server::start("etcd", 2, make, ready), options }
    }

    /// The process: to be stopped, killed and restarted.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Its address for clients.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Its port for clients.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The certificates of a member with TLS.
    pub fn certificates(&self) -> Certificates {
        Certificates::at(self.server.place())
    }

    /// Whether it serves writes; `None` if it does not answer.
    pub fn health(&self) -> Option<bool> {
        health(metrics(self.server.place()))
    }

    /// A number that it counts, as `etcd_server_is_leader`; for a name with labels, their sum.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metric_of(name, "")
    }

    /// As [`Etcd::metric`], of those with this among their labels, as `grpc_method="Txn"`.
    pub fn metric_of(&self, name: &str, label: &str) -> Option<f64> {
        let text = get(metrics(self.server.place()), "/metrics")?;
        let counts = text.lines().filter_map(|line| {
            let (labels, count) = line.strip_prefix(name)?.rsplit_once(' ')?;
            let ends = labels.is_empty() || labels.starts_with('{');
            if ends && labels.contains(label) { count.parse::<f64>().ok() } else { None }
        });
        counts.reduce(|one, other| one + other)
    }

    /// What `etcdctl` answers, without its last line end.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn ctl(&self, args: &[&str]) -> String {
        match self.try_ctl(args) {
            Ok(text) => text,
            Err(text) => panic!("etcdctl {args:?}: {text}"),
        }
    }

    /// As [`Etcd::ctl`], or what it says when it fails.
    ///
    /// # Errors
    ///
    /// Its standard error.
    pub fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.command().args(args).output().map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// `etcdctl`, told where this member is.
    pub fn command(&self) -> Command {
        let mut command = Command::new(find(&["etcdctl"]));
        let scheme = if self.options.tls { "https" } else { "http" };
        command.env("ETCDCTL_API", "3");
        command.arg(format!("--endpoints={scheme}://{}", self.addr()));
        if self.options.tls {
            let made = self.certificates();
            command.arg("--cacert").arg(made.ca());
            command.arg("--cert").arg(made.client());
            command.arg("--key").arg(Certificates::key(&made.client()));
        }
        command
    }
}

/// Several members that hold together.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Etcd>,
}

impl Cluster {
    /// So many members, with a leader.
    ///
    /// # Panics
    ///
    /// If they do not start, or have no leader within a minute.
    pub fn with(count: usize, options: &Options) -> Cluster {
        let ports = Arc::new((0..count).map(|_| Port::reserve()).collect::<Vec<Port>>());
        let members = std::thread::scope(|scope| {
            let started: Vec<_> = (0..count)
                .map(|own| {
                    let peers = Peers { own, ports: Arc::clone(&ports) };
                    scope.spawn(move || Etcd::member(options.clone(), peers, false))
                })
                .collect();
            started
                .into_iter()
                .map(|one| one.join().unwrap_or_else(|_| panic!("no member")))
                .collect()
        });
        let cluster = Cluster { members };
        cluster.wait(count);
        cluster
    }

    /// The members.
    pub fn members(&self) -> &[Etcd] {
        &self.members
    }

    /// Waits until so many members serve writes.
    ///
    /// # Panics
    ///
    /// If they do not within a minute.
    pub fn wait(&self, serving: usize) {
        wait_until("the members serve", QUORUM, || {
            let healthy = self.members.iter().filter(|m| m.health() == Some(true)).count();
            if healthy >= serving { Ok(()) } else { Err(format!("{healthy} of {serving} serve")) }
        });
    }

    /// The member that leads.
    ///
    /// # Panics
    ///
    /// If there is none within a minute.
    pub fn leader(&self) -> &Etcd {
        let mut found = 0;
        wait_until("a member leads", QUORUM, || {
            let leads = |member: &Etcd| member.metric("etcd_server_is_leader") == Some(1.0);
            let at = self.members.iter().position(leads);
            found = at.unwrap_or_default();
            if at.is_some() { Ok(()) } else { Err("none leads".to_owned()) }
        });
        &self.members[found]
    }

    /// A member that does not lead.
    ///
    /// # Panics
    ///
    /// As [`Cluster::leader`].
    pub fn follower(&self) -> &Etcd {
        let leader = self.leader().port();
        let other = self.members.iter().find(|member| member.port() != leader);
        other.unwrap_or_else(|| panic!("it has one member"))
    }
}

impl Options {
    fn program(&self, place: &Place, peers: &Peers) -> Program {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let scheme = if self.tls { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", place.port());
        let name = |at: usize| format!("m{at}");
        let all: Vec<String> = peers
            .ports
            .iter()
            .enumerate()
            .map(|(at, port)| format!("{}={}", name(at), url(port.number())))
            .collect();
        let peer = url(peers.ports[peers.own].number());
        let mut program = Program::new(self.release.path())
            .args(["--name", &name(peers.own), "--data-dir"])
            .arg(place.data())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(",")])
            .args(["--listen-metrics-urls", &url(place.port_at(1))])
            // The shortest lease is 1.5 election timeouts, in whole seconds.
            .args(["--heartbeat-interval", "100", "--election-timeout", "600"]);
        if let Some(time) = &self.time {
            program = program.fake_time(time);
        }
        if self.release == Release::Newest && !self.durable {
            program = program.arg("--unsafe-no-fsync");
        }
        if self.tls {
            let made = Certificates::at(place);
            program = program.arg("--cert-file").arg(made.server());
            program = program.arg("--key-file").arg(Certificates::key(&made.server()));
        }
        if self.client_certs {
            let made = Certificates::at(place);
            program = program.arg("--client-cert-auth").arg("--trusted-ca-file").arg(made.ca());
        }
        program.args(&self.args)
    }
}

fn metrics(place: &Place) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], place.port_at(1)))
}

fn health(at: SocketAddr) -> Option<bool> {
    get(at, "/health").map(|text| text.contains("\"health\":\"true\""))
}

/// What it answers to a plain GET.
fn get(at: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER).ok()?;
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_survives_its_leader() {
        let cluster = Cluster::with(3, &Options::default());
        let leader = cluster.leader();
        let other = cluster.follower();
        other.ctl(&["put", "a", "b"]);
        leader.server().kill9();
        cluster.wait(2);
        assert_eq!(other.ctl(&["get", "a", "--print-value-only"]), "b");
        leader.server().restart();
        cluster.wait(3);
    }

    #[test]
    fn tls_is_spoken_by_either_release() {
        for release in Release::ALL {
            let options = Options { release, tls: true, client_certs: true, ..Options::default() };
            let etcd = Etcd::with(options);
            etcd.ctl(&["put", "a", "b"]);
            assert_eq!(etcd.ctl(&["get", "a", "--print-value-only"]), "b");
            assert!(etcd.metric("etcd_mvcc_put_total").is_some());
        }
    }
}
