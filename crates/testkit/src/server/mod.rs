//! Real servers as child processes of a test: started on free ports with a folder of their own,
//! killed, stopped and restarted at will, and never left behind.
//!
//! A [`Server`] is a [`Program`] at a [`Place`]. Beside each stand guards: small shells whose standard
//! input the test process holds. When that ends, however the test process ended, one kills the server
//! with all its children, stopped ones too, and one removes the folder. So a server may sit in a
//! `static` that is never dropped.
//!
//! Ports come from below the range that outgoing connections use, and are reserved among all test
//! processes of the machine while the server lives: nobody takes one while the server is down.
//!
//! ```
//! use std::net::TcpStream;
//! use leasehold_testkit::server::{Place, Program, Server, find};
//!
//! let server = Server::start(
//!     "redis",
//!     1,
//!     |place: &Place| {
//!         Program::new(find(&["redis-server"]))
//!             .args(["--port", &place.port().to_string(), "--save", "", "--bind", "127.0.0.1"])
//!     },
//!     |place: &Place| TcpStream::connect(place.addr()).map(drop).map_err(|e| e.to_string()),
//! );
//! server.stop();
//! server.cont();
//! server.kill9();
//! assert!(!server.is_running());
//! server.restart();
//! assert!(TcpStream::connect(server.addr()).is_ok());
//! ```

mod certificates;
pub mod etcd;
mod fake_time;
mod guard;
pub mod mariadb;
pub mod pgbouncer;
mod place;
mod port;
pub mod postgres;
mod program;
pub mod redis;
mod tree;
mod wait;
pub mod zookeeper;

pub use certificates::Certificates;
pub use fake_time::FakeTime;
pub use place::Place;
pub use port::Port;
pub(crate) use program::target;
pub use program::{Program, fetched, find};
pub use wait::wait_until;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use guard::Guarded;

/// How long a server may take until it is ready, or until it has ended when told to.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many sets of ports are tried before giving up.
const TRIES: usize = 5;

type Make = dyn Fn(&Place) -> Program + Send + Sync;
type Ready = dyn Fn(&Place) -> Result<(), String> + Send + Sync;

/// A running, stopped or ended server, and what is needed to start it again.
///
/// All its methods take `&self`; those that wait are bounded, and panic with the server's log.
pub struct Server {
    name: &'static str,
    make: Box<Make>,
    ready: Box<Ready>,
    // Before the place: the server is killed before its folder is removed.
    running: Mutex<Option<Guarded>>,
    place: Place,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("name", &self.name).field("place", &self.place).finish()
    }
}

/// Why a server did not get ready.
struct NotReady {
    why: String,
    /// Somebody else has its port.
    taken: bool,
}

impl Server {
    /// Starts a server, and waits until it is ready.
    ///
    /// `make` says what to run at a place with this many ports. It is called at *every* start, and
    /// prepares the data folder where that is missing. `ready` is asked until it says so.
    ///
    /// # Panics
    ///
    /// If it is not ready in time or ends before: with its log.
    pub fn start(
        name: &'static str,
        ports: usize,
        make: impl Fn(&Place) -> Program + Send + Sync + 'static,
        ready: impl Fn(&Place) -> Result<(), String> + Send + Sync + 'static,
    ) -> Server {
        let (make, ready): (Box<Make>, Box<Ready>) = (Box::new(make), Box::new(ready));
        let mut tries = 1;
        loop {
            let place = Place::new(name, ports);
            match launch(&place, &make, &ready) {
                Ok(running) => {
                    let running = Mutex::new(Some(running));
                    return Server { name, make, ready, running, place };
                }
                Err(not) if not.taken && tries < TRIES => tries += 1,
                Err(not) => panic!("{name} is not ready: {}\n{}", not.why, place.log_tail()),
            }
        }
    }

    /// Where it runs.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.place.folder()
    }

    /// Its first port.
    pub fn port(&self) -> u16 {
        self.place.port()
    }

    /// Its first port on the loopback address.
    pub fn addr(&self) -> SocketAddr {
        self.place.addr()
    }

    /// All that it has printed.
    pub fn log(&self) -> String {
        self.place.log()
    }

    /// The id of its main process, if it was started and not yet ended by us.
    pub fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(Guarded::pid)
    }

    /// Whether its main process lives, be it stopped.
    pub fn is_running(&self) -> bool {
        self.lock().as_ref().is_some_and(Guarded::is_alive)
    }

    /// Kills it with all its children, as `kill -9` does, and waits until they have ended.
    pub fn kill9(&self) {
        *self.lock() = None;
    }

    /// Asks it to end (SIGTERM), and waits until it has.
    ///
    /// # Panics
    ///
    /// If it has not ended within a minute.
    pub fn term(&self) {
        let mut running = self.lock();
        if let Some(server) = running.take() {
            server.signal(Signal::TERM);
            let ended = server.wait(PATIENCE);
            assert!(ended, "{} ignores SIGTERM\n{}", self.name, self.place.log_tail());
        }
    }

    /// Sends a signal to its main process, if that lives.
    pub fn signal(&self, signal: Signal) {
        if let Some(server) = self.lock().as_ref() {
            server.signal(signal);
        }
    }

    /// Stops it with all its children (SIGSTOP), and waits until they stand still.
    pub fn stop(&self) {
        if let Some(server) = self.lock().as_ref() {
            server.stop();
        }
    }

    /// Lets it and its children go on.
    pub fn cont(&self) {
        if let Some(server) = self.lock().as_ref() {
            server.cont();
        }
    }

    /// Ends it, if it runs, and starts it with the same ports and folder.
    ///
    /// # Panics
    ///
    /// As [`Server::term`] and [`Server::start`].
    pub fn restart(&self) {
        self.cont();
        self.term();
        self.start_again();
    }

    /// Kills it, empties its folder, and starts it with the same ports.
    ///
    /// # Panics
    ///
    /// As [`Server::start`].
    pub fn restart_empty(&self) {
        self.kill9();
        self.place.empty();
        self.start_again();
    }

    /// Starts it after it has ended; does nothing if it runs.
    ///
    /// # Panics
    ///
    /// As [`Server::start`].
    pub fn start_again(&self) {
        let mut running = self.lock();
        if running.as_ref().is_some_and(Guarded::is_alive) {
            return;
        }
        *running = None;
        match launch(&self.place, &self.make, &self.ready) {
            Ok(server) => *running = Some(server),
            Err(not) => {
                panic!("{} is not ready again: {}\n{}", self.name, not.why, self.place.log_tail())
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Guarded>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the log of {}:\n{}", self.name, self.place.log_tail());
        }
    }
}

fn launch(place: &Place, make: &Make, ready: &Ready) -> Result<Guarded, NotReady> {
    let program = make(place);
    let before = place.log().len();
    let server = Guarded::start(place, &program)
        .map_err(|e| NotReady { why: format!("{program:?}: {e}"), taken: false })?;
    let end = Instant::now() + PATIENCE;
    loop {
        let answer = ready(place);
        // Asked after it: a process that has ended answers nothing, another might.
        if !server.is_alive() {
            let printed = place.log().split_off(before).to_lowercase();
            let taken = printed.contains("address already in use");
            return Err(NotReady { why: "it has ended".to_owned(), taken });
        }
        match answer {
            Ok(()) => return Ok(server),
            Err(why) if Instant::now() >= end => return Err(NotReady { why, taken: false }),
            Err(_) => std::thread::sleep(wait::STEP),
        }
    }
}

#[cfg(test)]
mod tests;
