//! Redis servers: one, a master with replicas under Sentinels, a cluster.

mod cluster;
mod sentinel;

pub use cluster::Cluster;
pub use sentinel::Sentinels;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use super::{Certificates, FakeTime, Place, Program, Server, fetched, find};

/// A Redis server that can be run here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binary {
    /// Where it is.
    pub path: PathBuf,
    /// Major, minor and patch.
    pub version: (u32, u32, u32),
}

/// The servers on this machine, the oldest version first: the system's, and those that
/// `scripts/test prepare` has fetched.
///
/// # Panics
///
/// If one is missing or does not run.
pub fn versions() -> Vec<Binary> {
    let mut paths = vec![find(&["redis-server"])];
    let folder = fetched().join("redis");
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}: run scripts/test prepare", folder.display()));
    let fetched = entries.filter_map(Result::ok).map(|entry| entry.path().join("redis-server"));
    paths.extend(fetched.filter(|path| path.is_file()));
    let mut binaries: Vec<Binary> = paths.into_iter().map(binary).collect();
    binaries.sort_by_key(|binary| binary.version);
    assert!(binaries.len() >= 3, "only {binaries:?}: run scripts/test prepare");
    binaries
}

fn binary(path: PathBuf) -> Binary {
    let output = Command::new(&path).arg("--version").output();
    let output = output.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    let version = version(&text);
    let version = version.unwrap_or_else(|| panic!("{} says {text:?}", path.display()));
    Binary { path, version }
}

/// From `Redis server v=7.0.15 sha=…`.
fn version(text: &str) -> Option<(u32, u32, u32)> {
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?;
    let mut numbers = word.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

/// How a server is to be run. The default: the system's server, with nothing but its port.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// One of [`versions`], or the system's.
    pub binary: Option<PathBuf>,
    /// More arguments, as `["--maxmemory", "10mb"]`.
    pub args: Vec<String>,
    /// What the user `default` has to give.
    pub password: Option<String>,
    /// Lines of an ACL file, as `user ann on >secret ~* &* +@all`.
    pub acl: Vec<String>,
    /// The port of the master of which it is a replica.
    pub replica_of: Option<u16>,
    /// Its port speaks TLS only, and asks no certificate of the client unless `args` say so.
    pub tls: bool,
    /// The clock that it shows.
    pub time: Option<Arc<FakeTime>>,
}

/// A Redis server.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    options: Options,
}

impl Redis {
    /// The system's, empty, on a free port.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn start() -> Redis {
        Redis::with(Options::default())
    }

    /// One with these options.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn with(options: Options) -> Redis {
        let (make, ready) = (options.clone(), options.clone());
        let server = Server::start(
            "redis",
            2,
            move |place| make.program(place),
            move |place| match ready.ask(place, &["PING"]) {
                Ok(answer) if answer.trim() == "PONG" => Ok(()),
                Ok(other) | Err(other) => Err(other),
            },
        );
        Redis { server, options }
    }

    /// The process: to be stopped, killed and restarted.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// The certificates of a server with TLS.
    pub fn certificates(&self) -> Certificates {
        Certificates::at(self.server.place())
    }

    /// What `redis-cli` prints for a command, as the user `default`, without the last line's end.
    ///
    /// # Panics
    ///
    /// If the server does not answer, or answers with an error.
    pub fn cli(&self, words: &[&str]) -> String {
        let answer = self.try_cli(words);
        answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// As [`Redis::cli`].
    ///
    /// # Errors
    ///
    /// If the server does not answer, or answers with an error.
    pub fn try_cli(&self, words: &[&str]) -> Result<String, String> {
        let answer = self.options.ask(self.server.place(), words)?;
        Ok(answer.strip_suffix('\n').unwrap_or(&answer).to_owned())
    }
}

impl Options {
    fn program(&self, place: &Place) -> Program {
        let data = place.data();
        if !data.exists() {
            fs::create_dir(&data).unwrap_or_else(|e| panic!("make {}: {e}", data.display()));
        }
        let path = self.binary.clone().unwrap_or_else(|| find(&["redis-server"]));
        let mut program = Program::new(path)
            .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no", "--dir"])
            .arg(data);
        let port = place.port().to_string();
        if self.tls {
            let made = Certificates::at(place);
            program = program
                .args(["--port", "0", "--tls-port", &port, "--tls-auth-clients", "optional"])
                .args(["--tls-replication", "yes"]);
            let files = [
                ("--tls-ca-cert-file", made.ca()),
                ("--tls-cert-file", made.server()),
                ("--tls-key-file", Certificates::key(&made.server())),
            ];
            for (name, file) in files {
                program = program.arg(name).arg(file);
            }
        } else {
            program = program.args(["--port", &port]);
        }
        if !self.acl.is_empty() {
            let mut lines = self.acl.join("\n");
            if let Some(password) = &self.password {
                lines = format!("user default on >{password} ~* &* +@all\n{lines}");
            }
            program = program.arg("--aclfile").arg(place.write("users.acl", &(lines + "\n")));
        } else if let Some(password) = &self.password {
            program = program.args(["--requirepass", password]);
        }
        if let Some(password) = &self.password {
            program = program.args(["--masterauth", password]);
        }
        if let Some(master) = self.replica_of {
            program = program.args(["--replicaof", "127.0.0.1", &master.to_string()]);
        }
        if let Some(time) = &self.time {
            program = program.fake_time(time);
        }
        program.args(&self.args)
    }

    fn ask(&self, place: &Place, words: &[&str]) -> Result<String, String> {
        // Without a listener the client would take longer to say so.
        TcpStream::connect(place.addr()).map_err(|e| e.to_string())?;
        let mut cli = Command::new(find(&["redis-cli"]));
        cli.args(["-e", "-h", "127.0.0.1", "-p", &place.port().to_string()]);
        if let Some(password) = &self.password {
            cli.env("REDISCLI_AUTH", password);
        }
        if self.tls {
            cli.arg("--tls").arg("--cacert").arg(Certificates::at(place).ca());
        }
        let output = cli.args(words).output().map_err(|e| format!("redis-cli: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_server_says() {
        let text = "Redis server v=8.2.1 sha=00000000:1 malloc=jemalloc-5.3.0 bits=64 build=4e";
        assert_eq!(version(text), Some((8, 2, 1)));
        assert_eq!(version("Redis server"), None);
    }
}
