//! A TCP proxy before a server, that cuts, holds, delays and swallows what passes.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::{TcpListener, TcpStream};
//! use leasehold_testkit::proxy::Proxy;
//!
//! let server = TcpListener::bind("127.0.0.1:0")?;
//! let proxy = Proxy::start(server.local_addr()?);
//! let mut client = TcpStream::connect(proxy.addr())?;
//! let (mut peer, _) = server.accept()?;
//! client.write_all(b"hello")?;
//! let mut bytes = [0; 5];
//! peer.read_exact(&mut bytes)?;
//! proxy.sever();
//! assert_eq!(client.read(&mut bytes)?, 0);
//! # Ok::<(), std::io::Error>(())
//! ```

mod pump;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::server::Port;

/// Connections beyond these are closed at once.
const MOST_CONNECTIONS: usize = 2048;

/// How long a call waits for what is just being written.
const SETTLE: Duration = Duration::from_secs(1);

/// In which way something passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From a client to the server.
    ToServer = 0,
    /// From the server to a client.
    ToClient = 1,
}

impl Way {
    const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];

    fn index(self) -> usize {
        self as usize
    }
}

/// What becomes of a chunk that a hook has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// It is dropped; the connection stays.
    Swallow,
    /// It and all behind it on this way of this connection wait for [`Proxy::resume`] or
    /// [`Proxy::clear_hook`], and pass then.
    Hold,
    /// It is dropped, and the connection is cut.
    Cut,
}

type Hook = dyn Fn(Way, u64, &[u8]) -> Verdict + Send + Sync;

/// A proxy on a port of its own. Its methods may be called from any thread, and take effect before
/// they return; dropping it cuts all its connections.
pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    port: Port,
    listener: TcpListener,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    target: SocketAddr,
    paused: [bool; 2],
    /// Rises when what hooks have held is let go.
    released: u64,
    /// How many chunks are just being written, each way.
    writing: [u32; 2],
    refused: bool,
    closed: bool,
    delay: Duration,
    /// From how many connections the next answer is to be swallowed.
    drop_replies: u32,
    hook: Option<Arc<Hook>>,
    connections: BTreeMap<u64, Connection>,
    accepted: u64,
    bytes: [u64; 2],
}

struct Connection {
    client: TcpStream,
    /// Not yet there while the way to it is paused.
    server: Option<TcpStream>,
}

impl Connection {
    fn cut(&self) {
        // Either side may have gone already.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &self.server {
            let _ = server.shutdown(Shutdown::Both);
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("addr", &self.addr()).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Starts one before the server of this address, which need not listen yet.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub fn start(target: SocketAddr) -> Proxy {
        let (port, listener) = bind();
        let state = State {
            target,
            paused: [false; 2],
            released: 0,
            writing: [0; 2],
            refused: false,
            closed: false,
            delay: Duration::ZERO,
            drop_replies: 0,
            hook: None,
            connections: BTreeMap::new(),
            accepted: 0,
            bytes: [0; 2],
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { port, listener, state, changed });
        let for_acceptor = Arc::clone(&shared);
        let acceptor = Some(thread::spawn(move || accept(&for_acceptor)));
        Proxy { shared, acceptor }
    }

    /// Its address, for clients.
    pub fn addr(&self) -> SocketAddr {
        self.shared.port.addr()
    }

    /// Its port, for clients.
    pub fn port(&self) -> u16 {
        self.shared.port.number()
    }

    /// Cuts all connections; new ones pass.
    pub fn sever(&self) {
        let mut state = self.shared.lock();
        let cut = std::mem::take(&mut state.connections);
        cut.values().for_each(Connection::cut);
        self.shared.changed.notify_all();
    }

    /// Lets nothing through, in either way. Connections stay, and new ones are made but hang.
    pub fn pause(&self) {
        self.set_paused(&Way::BOTH, true);
    }

    /// Lets everything through again, also what hooks have held.
    pub fn resume(&self) {
        self.shared.lock().released += 1;
        self.set_paused(&Way::BOTH, false);
    }

    /// Holds back what servers send, or no longer: requests still reach them.
    pub fn pause_to_client(&self, paused: bool) {
        self.set_paused(&[Way::ToClient], paused);
    }

    /// Holds back what clients send, or no longer: what servers send still reaches them.
    pub fn pause_to_server(&self, paused: bool) {
        self.set_paused(&[Way::ToServer], paused);
    }

    fn set_paused(&self, ways: &[Way], paused: bool) {
        let mut state = self.shared.lock();
        ways.iter().for_each(|way| state.paused[way.index()] = paused);
        self.shared.changed.notify_all();
        if paused {
            self.settle(state, ways);
        }
    }

    /// Waits for what has passed the gate but is not yet written.
    fn settle(&self, mut state: MutexGuard<'_, State>, ways: &[Way]) {
        let end = Instant::now() + SETTLE;
        while ways.iter().any(|way| state.writing[way.index()] > 0) && Instant::now() < end {
            state = self.shared.wait(state, Some(end));
        }
    }

    /// Refuses new connections, as a host does on which nothing listens, or no longer. Those that
    /// are there stay.
    ///
    /// # Panics
    ///
    /// If the port cannot be listened on again.
    pub fn refuse(&self, refused: bool) {
        let mut state = self.shared.lock();
        if state.refused == refused {
            return;
        }
        state.refused = refused;
        if refused {
            self.shared.deafen();
        } else {
            rustix::net::listen(&self.shared.listener, 128).expect("listen again");
        }
        self.shared.changed.notify_all();
    }

    /// Lets everything arrive this much later, each way.
    pub fn delay(&self, by: Duration) {
        self.shared.lock().delay = by;
        self.shared.changed.notify_all();
    }

    /// Swallows the next answer on each of the next `connections` to get one, and cuts them: the
    /// server has done what it was asked, and its client does not know.
    pub fn drop_replies(&self, connections: u32) {
        let mut state = self.shared.lock();
        state.drop_replies = connections;
        self.settle(state, &[Way::ToClient]);
    }

    /// Leads new connections to another server. Those that are there stay.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.lock().target = target;
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// How many connections there have ever been.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// How many bytes have passed to the server.
    pub fn bytes_to_server(&self) -> u64 {
        self.shared.lock().bytes[Way::ToServer.index()]
    }

    /// How many bytes have passed to clients.
    pub fn bytes_to_client(&self) -> u64 {
        self.shared.lock().bytes[Way::ToClient.index()]
    }

    /// Shows each chunk to `hook` before it passes, with the number of its connection: the first
    /// one has the number 1. A chunk is what was read at once: a message may be in two of them.
    pub fn on_chunk(&self, hook: impl Fn(Way, u64, &[u8]) -> Verdict + Send + Sync + 'static) {
        self.set_hook(Some(Arc::new(hook)));
    }

    /// Removes the hook, and lets go what it has held.
    pub fn clear_hook(&self) {
        self.set_hook(None);
    }

    fn set_hook(&self, hook: Option<Arc<Hook>>) {
        let mut state = self.shared.lock();
        state.hook = hook;
        state.released += 1;
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.sever();
        self.shared.deafen();
        if let Some(acceptor) = self.acceptor.take() {
            // A panic there has been printed.
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, at most until `end`.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        end: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        let Some(end) = end else {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        let left = end.saturating_duration_since(Instant::now());
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the listening but keeps the port, as that was bound by its number.
    fn deafen(&self) {
        // It may be deaf already.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Read);
    }

    fn cut(&self, number: u64) {
        if let Some(connection) = self.lock().connections.remove(&number) {
            connection.cut();
        }
        self.changed.notify_all();
    }
}

fn bind() -> (Port, TcpListener) {
    for _ in 0..100 {
        let port = Port::reserve();
        if let Ok(listener) = TcpListener::bind(port.addr()) {
            return (port, listener);
        }
    }
    panic!("no port can be listened on");
}

fn accept(shared: &Arc<Shared>) {
    loop {
        let accepted = shared.listener.accept();
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        match accepted {
            Ok((client, _)) if state.connections.len() < MOST_CONNECTIONS => {
                state.accepted += 1;
                let number = state.accepted;
                let Ok(own) = client.try_clone() else { continue };
                state.connections.insert(number, Connection { client: own, server: None });
                let shared = Arc::clone(shared);
                thread::spawn(move || pump::run(&shared, number, client));
            }
            Ok(_) => {}
            Err(_) => {
                while state.refused && !state.closed {
                    state = shared.wait(state, None);
                }
                drop(state);
                // Else it would spin where the process has no descriptors left.
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[cfg(test)]
mod tests;
