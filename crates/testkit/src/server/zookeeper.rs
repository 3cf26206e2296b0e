//! ZooKeeper: single servers and ensembles.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Certificates, FakeTime, Place, Port, Program, Server, fetched, find, wait_until};

/// How long a server may take for one of its words of four letters; a stopped one never answers.
const WORD: Duration = Duration::from_secs(1);
/// How long an ensemble may take to have a leader.
const QUORUM: Duration = Duration::from_secs(60);

/// A ZooKeeper that can be run here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Release {
    /// The system's: 3.8 on Debian 12.
    #[default]
    System,
    /// The one that `scripts/test prepare` has fetched.
    Newest,
}

impl Release {
    /// All of them.
    pub const ALL: [Release; 2] = [Release::System, Release::Newest];

    fn class_path(self) -> OsString {
        match self {
            // Its manifest names the rest.
            Release::System => {
                let jar = |name: &str| find(&[&format!("/usr/share/java/{name}.jar")]);
                let mut path = jar("zookeeper").into_os_string();
                path.push(":");
                path.push(jar("slf4j-simple"));
                path
            }
            Release::Newest => {
                let folder = fetched().join("zookeeper");
                assert!(folder.is_dir(), "{}: run scripts/test prepare", folder.display());
                folder.join("*").into_os_string()
            }
        }
    }
}

/// How a server is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which ZooKeeper.
    pub release: Release,
    /// Sessions are of 2 to 20 ticks unless `lines` say otherwise.
    pub tick: Duration,
    /// More lines of its configuration, as `maxSessionTimeout=60000`.
    pub lines: Vec<String>,
    /// More options of the Java machine, as `-Dznode.container.checkIntervalMs=500`.
    pub java: Vec<String>,
    /// A second port that speaks TLS.
    pub tls: bool,
    /// The wall clock that it shows.
    pub time: Option<Arc<FakeTime>>,
}

impl Default for Options {
    /// The system's, with a short tick and sessions of up to a minute, not synced to the disk.
    fn default() -> Options {
        Options {
            release: Release::System,
            tick: Duration::from_millis(200),
            lines: vec!["maxSessionTimeout=60000".into()],
            java: vec!["-Dzookeeper.forceSync=no".into()],
            tls: false,
            time: None,
        }
    }
}

/// Others of its ensemble, by their number, with the ports they talk to each other on.
#[derive(Clone, Debug)]
struct Peers {
    own: usize,
    ports: Arc<Vec<(Port, Port)>>,
}

/// A ZooKeeper server.
#[derive(Debug)]
pub struct Zookeeper {
    server: Server,
}

impl Zookeeper {
    /// The system's, alone and empty.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn start() -> Zookeeper {
        Zookeeper::with(Options::default())
    }

    /// One alone with these options.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn with(options: Options) -> Zookeeper {
        let serves = |place: &Place| match mode(place.addr()) {
            Some(_) => Ok(()),
            None => Err("it does not serve yet".to_owned()),
        };
        let make = move |place: &Place| options.program(place, None);
        Zookeeper { server: Server::start("zookeeper", 2, make, serves) }
    }

    /// The process: to be stopped, killed and restarted.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// The port that speaks TLS, where there is one.
    pub fn tls_port(&self) -> u16 {
        self.server.place().port_at(1)
    }

    /// The certificates of a server with TLS.
    pub fn certificates(&self) -> Certificates {
        Certificates::at(self.server.place())
    }

    /// What it answers to a word of four letters, as `mntr`; `None` if it does not answer.
    pub fn word(&self, word: &str) -> Option<String> {
        ask(self.addr(), word)
    }

    /// `leader`, `follower` or `standalone`; `None` if it does not serve.
    pub fn mode(&self) -> Option<String> {
        mode(self.addr())
    }
}

/// Several servers that keep one history.
#[derive(Debug)]
pub struct Ensemble {
    members: Vec<Zookeeper>,
}

impl Ensemble {
    /// So many servers with these options, with a leader.
    ///
    /// # Panics
    ///
    /// If they do not start.
    pub fn with(count: usize, options: &Options) -> Ensemble {
        let ports = (0..count).map(|_| (Port::reserve(), Port::reserve())).collect();
        let ports: Arc<Vec<(Port, Port)>> = Arc::new(ports);
        let start = |own| {
            let peers = Peers { own, ports: Arc::clone(&ports) };
            let options = options.clone();
            let make = move |place: &Place| options.program(place, Some(&peers));
            // It says so long before it has a quorum.
            let runs = |place: &Place| match ask(place.addr(), "ruok") {
                Some(_) => Ok(()),
                None => Err("it does not answer yet".to_owned()),
            };
            Zookeeper { server: Server::start("zookeeper", 2, make, runs) }
        };
        let ensemble = Ensemble { members: (0..count).map(start).collect() };
        ensemble.wait(count);
        ensemble
    }

    /// The servers.
    pub fn members(&self) -> &[Zookeeper] {
        &self.members
    }

    /// Waits until so many of them serve, one of them as the leader.
    ///
    /// # Panics
    ///
    /// If they do not within a minute.
    pub fn wait(&self, serving: usize) {
        wait_until("a leader", QUORUM, || {
            let modes: Vec<Option<String>> = self.members.iter().map(Zookeeper::mode).collect();
            let leaders = modes.iter().flatten().filter(|mode| *mode == "leader").count();
            let good = leaders == 1 && modes.iter().flatten().count() >= serving;
            if good { Ok(()) } else { Err(format!("{modes:?}")) }
        });
    }

    /// The leader.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn leader(&self) -> &Zookeeper {
        let leads = |member: &&Zookeeper| member.mode().as_deref() == Some("leader");
        self.members.iter().find(leads).unwrap_or_else(|| panic!("there is no leader"))
    }

    /// One that follows.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn follower(&self) -> &Zookeeper {
        let follows = |member: &&Zookeeper| member.mode().as_deref() == Some("follower");
        self.members.iter().find(follows).unwrap_or_else(|| panic!("there is no follower"))
    }
}

impl Options {
    fn program(&self, place: &Place, peers: Option<&Peers>) -> Program {
        let data = place.data();
        if !data.exists() {
            fs::create_dir(&data).unwrap_or_else(|e| panic!("make {}: {e}", data.display()));
        }
        let mut text = format!(
            "tickTime={}\ndataDir={}\nclientPort={}\nclientPortAddress=127.0.0.1\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\nmaxClientCnxns=0\n\
             preAllocSize=64\n",
            self.tick.as_millis(),
            data.display(),
            place.port(),
        );
        if let Some(peers) = peers {
            text.push_str("initLimit=50\nsyncLimit=10\n");
            for (n, (quorum, election)) in peers.ports.iter().enumerate() {
                let (quorum, election) = (quorum.number(), election.number());
                // Writing to a String cannot fail.
                let _ = writeln!(text, "server.{}=127.0.0.1:{quorum}:{election}", n + 1);
            }
            let own = data.join("myid");
            fs::write(&own, (peers.own + 1).to_string())
                .unwrap_or_else(|e| panic!("{}: {e}", own.display()));
        }
        if self.tls {
            text.push_str(&tls(place));
        }
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        let config = place.write("zoo.cfg", &text);
        let main = match peers {
            None => "org.apache.zookeeper.server.ZooKeeperServerMain",
            Some(_) => "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        };
        let mut program = Program::new(find(&["java"]))
            .args(["-Xmx64m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(&self.java)
            .arg("-cp")
            .arg(self.release.class_path())
            .arg(main)
            .arg(config);
        if let Some(time) = &self.time {
            program = program.fake_time(time);
        }
        program
    }
}

fn tls(place: &Place) -> String {
    let made = Certificates::at(place);
    let read = |path: &Path| {
        fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let both = read(&Certificates::key(&made.server())) + &read(&made.server());
    let key: PathBuf = place.write("both.pem", &both);
    format!(
        "secureClientPort={}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\nssl.keyStore.type=PEM\nssl.trustStore.location={}\n\
         ssl.trustStore.type=PEM\nssl.clientAuth=want\n",
        place.port_at(1),
        key.display(),
        made.ca().display(),
    )
}

fn mode(addr: SocketAddr) -> Option<String> {
    let answer = ask(addr, "srvr")?;
    Some(answer.lines().find_map(|line| line.strip_prefix("Mode: "))?.trim().to_owned())
}

fn ask(addr: SocketAddr, word: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&addr, WORD).ok()?;
    stream.set_read_timeout(Some(WORD)).ok()?;
    stream.write_all(word.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer).filter(|answer| !answer.is_empty())
}
