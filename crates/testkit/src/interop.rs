//! Lock clients of other languages as child processes, for tests in which they share locks with
//! ours: Redisson, redis-py and redsync on Redis; Curator and kazoo on ZooKeeper; the lock and
//! election of etcd's own Go client, and its server's.
//!
//! They are built by `scripts/test interop`. Each takes commands line by line; which, is told at
//! the head of their sources in the folder `interop`. A label there is a thread, or session, of its
//! own that carries out its commands one after the other.
//!
//! ```no_run
//! use leasehold_testkit::interop::Foreign;
//!
//! let mut java = Foreign::redisson("redis://127.0.0.1:6379", &["watchdog=30000"]);
//! assert_eq!(java.call("ann", "lock orders").text, "locked");
//! let waiting = java.send("ben", "lock orders");
//! assert_eq!(java.answered(waiting), None);
//! java.call("ann", "unlock orders");
//! assert_eq!(java.result(waiting).text, "locked");
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::{Line, Process, Stream};
use crate::server::{find, target};

/// How long a client may take to start, or to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// When it said so, by the clock of [`monotonic`](crate::process::monotonic).
    pub at: Duration,
    /// The number of the command that it answers, or 0 if it was not asked.
    pub number: u64,
    /// Whose it is.
    pub label: String,
    /// The words: `locked`, `token 7`, `refused`, `error …`.
    pub text: String,
}

impl Event {
    fn of(line: &Line) -> Option<Event> {
        if line.stream != Stream::Out {
            return None;
        }
        let mut parts = line.text.splitn(4, ' ');
        let at = Duration::from_nanos(parts.next()?.parse().ok()?);
        let number = parts.next()?.parse().ok()?;
        let label = parts.next()?.to_owned();
        Some(Event { at, number, label, text: parts.next().unwrap_or_default().to_owned() })
    }
}

/// A client of another language, in a process of its own that ends with this value or this
/// process, without unlocking anything.
#[derive(Debug)]
pub struct Foreign {
    process: Process,
    sent: u64,
}

impl Foreign {
    /// Redisson at a Redis URL, or several with commas between.
    ///
    /// # Panics
    ///
    /// As all of these: if it was not built, or is not connected within a minute.
    pub fn redisson(url: &str, options: &[&str]) -> Foreign {
        Foreign::java("redisson", url, options)
    }

    /// Curator at ZooKeeper servers.
    ///
    /// # Panics
    ///
    /// As [`Foreign::redisson`].
    pub fn curator(hosts: &str, options: &[&str]) -> Foreign {
        Foreign::java("curator", hosts, options)
    }

    /// The system's Curator at ZooKeeper servers: 5.4 on Debian 12.
    ///
    /// # Panics
    ///
    /// As [`Foreign::redisson`].
    pub fn system_curator(hosts: &str, options: &[&str]) -> Foreign {
        let jars = ["curator-recipes", "curator-framework", "curator-client", "guava", "zookeeper"]
            .map(|jar| find(&[&format!("/usr/share/java/{jar}.jar")]).display().to_string());
        let folder = built("java/foreign.jar");
        let path = format!("{}/foreign.jar:{}", folder.display(), jars.join(":"));
        Foreign::java_at(&path, "curator", hosts, options)
    }

    /// The Go client of etcd.
    ///
    /// # Panics
    ///
    /// As [`Foreign::redisson`].
    pub fn etcd(endpoints: &str, options: &[&str]) -> Foreign {
        Foreign::go("etcd", endpoints, options)
    }

    /// redsync at independent Redis servers.
    ///
    /// # Panics
    ///
    /// As [`Foreign::redisson`].
    pub fn redlock(addresses: &str, options: &[&str]) -> Foreign {
        Foreign::go("redlock", addresses, options)
    }

    /// kazoo at ZooKeeper servers.
    ///
    /// # Panics
    ///
    /// As [`Foreign::redisson`].
    pub fn kazoo(hosts: &str, options: &[&str]) -> Foreign {
        Foreign::python("kazoo", hosts, options)
    }

    /// redis-py at a Redis URL.
    ///
    /// # Panics
    ///
    /// As [`Foreign::redisson`].
    pub fn redis_py(url: &str, options: &[&str]) -> Foreign {
        Foreign::python("redis", url, options)
    }

    fn java(kind: &str, at: &str, options: &[&str]) -> Foreign {
        let folder = built("java/foreign.jar");
        let path = format!("{0}/foreign.jar:{0}/lib/*", folder.display());
        Foreign::java_at(&path, kind, at, options)
    }

    fn java_at(path: &str, kind: &str, at: &str, options: &[&str]) -> Foreign {
        let mut command = Command::new(find(&["java"]));
        // A small one that starts quickly.
        command.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
        command.args([path, "Main"]);
        Foreign::start(command, kind, at, options)
    }

    fn go(kind: &str, at: &str, options: &[&str]) -> Foreign {
        let folder = built("go/foreign");
        Foreign::start(Command::new(folder.join("foreign")), kind, at, options)
    }

    fn python(kind: &str, at: &str, options: &[&str]) -> Foreign {
        let folder = built("python/foreign.py");
        let mut command = Command::new(find(&["python3"]));
        command.arg(folder.join("foreign.py"));
        Foreign::start(command, kind, at, options)
    }

    fn start(mut command: Command, kind: &str, at: &str, options: &[&str]) -> Foreign {
        command.arg(kind).arg(at).args(options);
        let process = Process::start(&mut command);
        let process = process.unwrap_or_else(|e| panic!("start {command:?}: {e}"));
        let client = Foreign { process, sent: 0 };
        client.event("-", "ready");
        client
    }

    /// Sends a command, and returns its number at once.
    ///
    /// # Panics
    ///
    /// If the client has ended.
    pub fn send(&mut self, label: &str, command: &str) -> u64 {
        self.sent += 1;
        let line = format!("{} {label} {command}\n", self.sent);
        let written = self.process.write(line.as_bytes());
        written.unwrap_or_else(|e| panic!("{command:?}: {e}: {:?}", self.process.lines()));
        self.sent
    }

    /// Waits for the answer to the command of this number.
    ///
    /// # Panics
    ///
    /// If there is none within a minute.
    pub fn result(&self, number: u64) -> Event {
        self.wait(&format!("the answer to {number}"), |event| event.number == number)
    }

    /// Sends a command, and waits for its answer.
    ///
    /// # Panics
    ///
    /// As [`Foreign::send`] and [`Foreign::result`].
    pub fn call(&mut self, label: &str, command: &str) -> Event {
        let number = self.send(label, command);
        self.result(number)
    }

    /// The answer to the command of this number, if it is there already.
    pub fn answered(&self, number: u64) -> Option<Event> {
        self.events().into_iter().find(|event| event.number == number)
    }

    /// Waits for the first thing that this label has said unasked and that starts so.
    ///
    /// # Panics
    ///
    /// If there is none within a minute.
    pub fn event(&self, label: &str, start: &str) -> Event {
        self.wait(start, |event| {
            event.number == 0 && event.label == label && event.text.starts_with(start)
        })
    }

    /// All that it has said so far.
    pub fn events(&self) -> Vec<Event> {
        self.process.lines().iter().filter_map(Event::of).collect()
    }

    /// The process: to be stopped, continued and killed.
    pub fn process(&self) -> &Process {
        &self.process
    }

    fn wait(&self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        let line = self.process.wait_for_line(what, PATIENCE, |line| {
            Event::of(line).is_some_and(|event| is_it(&event))
        });
        Event::of(&line).unwrap_or_else(|| panic!("{line:?} is no event"))
    }
}

/// The folder with a file that was built.
fn built(file: &str) -> PathBuf {
    let path = target().join("interop").join(file);
    assert!(path.is_file(), "{} is missing: run scripts/test interop", path.display());
    path.parent().map(Path::to_owned).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::redis::Redis;
    use crate::server::{Place, Program, Server, fetched};

    fn etcd() -> Server {
        Server::start(
            "etcd",
            2,
            |place: &Place| {
                let url = |i| format!("http://127.0.0.1:{}", place.port_at(i));
                Program::new(fetched().join("etcd/etcd"))
                    .args(["--listen-client-urls", &url(0), "--advertise-client-urls", &url(0)])
                    .args(["--listen-peer-urls", &url(1), "--initial-advertise-peer-urls", &url(1)])
                    .args(["--initial-cluster", &format!("default={}", url(1)), "--data-dir"])
                    .arg(place.data())
            },
            |place| match place.log().contains("ready to serve client requests") {
                true => Ok(()),
                false => Err("it serves nobody yet".to_owned()),
            },
        )
    }

    fn zookeeper() -> Server {
        Server::start(
            "zookeeper",
            1,
            |place: &Place| {
                let (data, port) = (place.data(), place.port());
                let config = format!(
                    "tickTime=200\ndataDir={}\nclientPort={port}\n\
                     clientPortAddress=127.0.0.1\nadmin.enableServer=false\n",
                    data.display()
                );
                Program::new(find(&["java"]))
                    .args(["-Xmx256m", "-cp"])
                    .arg(fetched().join("zookeeper/*"))
                    .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                    .arg(place.write("zoo.cfg", &config))
            },
            |place| std::net::TcpStream::connect(place.addr()).map(drop).map_err(|e| e.to_string()),
        )
    }

    fn token(event: &Event) -> u64 {
        event.text.strip_prefix("token ").unwrap().parse().unwrap()
    }

    #[test]
    fn redisson_locks_waits_fences_and_cycles() {
        let redis = Redis::start();
        let mut java = Foreign::redisson(&format!("redis://{}", redis.addr()), &["watchdog=5000"]);
        assert_eq!(java.call("ann", "lock x").text, "locked");
        assert_eq!(redis.cli(&["HLEN", "x"]), "1");
        let waiting = java.send("ben", "lock x 60000");
        assert_eq!(java.call("cem", "trylock x 0 1000").text, "refused");
        assert_eq!(java.call("ann", "held x").text, "held true 1");
        assert_eq!(java.answered(waiting), None);
        let freed = java.call("ann", "unlock x");
        let got = java.result(waiting);
        assert_eq!((got.text.as_str(), got.label.as_str()), ("locked", "ben"));
        assert!(got.at > freed.at - Duration::from_secs(1));
        assert_eq!(java.call("ann", "forceunlock x").text, "forced true");
        assert!(java.call("ben", "unlock x").text.contains("IllegalMonitorState"));
        let first = token(&java.call("ann", "fenced y"));
        assert_eq!(java.call("ben", "fenced y 0 1000").text, "refused");
        java.call("ann", "fenced.unlock y");
        assert_eq!(token(&java.call("ben", "fenced y 0 1000")), first + 1);
        assert_eq!(java.call("ann", "read.lock z 1000").text, "locked");
        assert_eq!(java.call("ben", "write.trylock z 0 1000").text, "refused");
        assert_eq!(java.call("ann", "cycle c 3 1").text, "done");
        let cycles = java.events().into_iter().filter(|e| e.number == 0 && e.text == "locked");
        assert_eq!(cycles.count(), 3);
        let stuck = java.send("ben", "lock z2");
        assert_eq!(java.result(stuck).text, "locked");
        let stuck = java.send("cem", "lock z2");
        assert_eq!(java.call("cem", "interrupt").text, "ok");
        assert!(java.result(stuck).text.contains("Interrupted"));
    }

    #[test]
    fn redis_py_and_redsync_lock() {
        let redis = Redis::start();
        let mut python = Foreign::redis_py(&format!("redis://{}", redis.addr()), &[]);
        let mut go = Foreign::redlock(&redis.addr().to_string(), &[]);
        assert_eq!(python.call("ann", "lock x 60000").text, "locked");
        assert!(go.call("ben", "trylock x 60000").text.starts_with("refused"));
        assert_eq!(python.call("cem", "lock x 60000 50").text, "refused");
        assert_eq!(python.call("ann", "unlock x").text, "unlocked");
        assert!(go.call("ben", "lock x 60000").text.starts_with("locked "));
        assert_eq!(python.call("ann", "trylock x 60000").text, "refused");
        assert_eq!(go.call("ben", "unlock x").text, "unlocked true");
    }

    #[test]
    fn the_clients_of_zookeeper_share_a_lock() {
        let zookeeper = zookeeper();
        let hosts = zookeeper.addr().to_string();
        let mut java = Foreign::curator(&hosts, &["session=4000"]);
        let mut python = Foreign::kazoo(&hosts, &["session=4000"]);
        assert_eq!(java.call("ann", "mutex.acquire /x").text, "acquired");
        let waiting = java.send("ben", "mutex.acquire /x");
        assert_eq!(java.call("cem", "mutex.acquire /x 50").text, "refused");
        assert_eq!(java.call("ann", "mutex.release /x").text, "released");
        assert_eq!(java.result(waiting).text, "acquired");
        assert_eq!(java.call("ann", "read.acquire /rw").text, "acquired");
        assert_eq!(java.call("ben", "write.acquire /rw 50").text, "refused");
        assert!(java.call("ann", "sem.acquire /s 1").text.starts_with("acquired "));
        assert_eq!(java.call("ben", "sem.acquire /s 1 50").text, "refused");
        java.call("ann", "leader.start /l me");
        java.event("ann", "leader");
        assert_eq!(python.call("ann", "lock.acquire /y").text, "acquired");
        assert_eq!(python.call("ben", "lock.try /y").text, "refused");
        assert_eq!(python.call("ann", "lock.contenders /y").text, "contenders ['ann']");
        assert_eq!(python.call("ann", "lock.release /y").text, "released True");
        assert!(python.call("ann", "session").text.starts_with("session "));
    }

    #[test]
    fn etcd_locks_and_elects_by_its_client_and_by_its_server() {
        let etcd = etcd();
        let mut go = Foreign::etcd(&etcd.addr().to_string(), &["ttl=5"]);
        assert!(go.call("ann", "lock x").text.starts_with("locked x/"));
        let waiting = go.send("ben", "server.lock x");
        assert_eq!(go.call("cem", "trylock x").text, "refused");
        assert_eq!(go.call("cem", "lock x 50").text, "refused");
        assert_eq!(go.call("ann", "unlock x").text, "unlocked");
        assert!(go.result(waiting).text.starts_with("locked x/"));
        assert!(go.call("ann", "campaign e me").text.starts_with("elected e/"));
        assert!(go.call("ben", "leader e").text.ends_with(" me"));
        let stuck = go.send("ben", "campaign e you");
        go.call("ben", "interrupt");
        assert!(go.result(stuck).text.contains("canceled"));
        go.call("ann", "close");
        go.event("ann", "session done");
    }

    #[test]
    fn answers_are_told_from_other_lines() {
        let line = |stream, text: &str| Line { at: Duration::ZERO, stream, text: text.to_owned() };
        let event = Event::of(&line(Stream::Out, "17 3 ann token 7")).unwrap();
        assert_eq!((event.at.as_nanos(), event.number), (17, 3));
        assert_eq!((event.label.as_str(), event.text.as_str()), ("ann", "token 7"));
        assert_eq!(Event::of(&line(Stream::Err, "17 3 ann token 7")), None);
        assert_eq!(Event::of(&line(Stream::Out, "WARNING: something")), None);
    }
}
