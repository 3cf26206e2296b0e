//! One session with ZooKeeper over one connection at a time: requests in, answers out, in order.
//!
//! Ours and not a client crate's, since belief stands on what those do not show: when the request
//! was sent that was answered last, the timeout that the *latest* connection negotiated, and
//! whether the session is still the one that it was before a reconnect.
//!
//! Watches are one-shot. What breaks a connection fires all of them: their waiters look again, and
//! nothing has to be registered anew.

mod jute;
mod link;
mod proto;
mod serve;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Clock as _, Error, Moment};
use leasehold_net::{BootClock, HostPort, Secret};
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};

pub use proto::Acl;
pub(crate) use proto::{Make, Op, Refusal, Reply, Stat, code};

/// The most requests that wait to be sent or answered.
const REQUESTS_MAX: usize = 20_000;

/// What a session needs to know.
#[derive(Debug, Clone)]
pub(crate) struct WireConfig {
    pub(crate) hosts: Vec<HostPort>,
    /// The timeout that is asked for.
    pub(crate) timeout: Duration,
    /// `user:password` for the scheme `digest`.
    pub(crate) login: Option<Secret>,
    pub(crate) acl: Acl,
    pub(crate) tls: Option<(Arc<tokio_rustls::rustls::ClientConfig>, Option<String>)>,
    /// The largest answer that is taken in.
    pub(crate) answer_max: usize,
}

/// What the session tells of itself, on its own task; must not block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// There is a connection again, of this or of a new session.
    Connected,
    /// The connection was lost; the session goes on, for now.
    Cut,
    /// The session has ended, and all ephemeral nodes of it.
    Over { generation: u64 },
}

pub(crate) type Hook = Box<dyn Fn(Event) + Send + Sync>;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) enum Fail {
    /// The server refused it; nothing was changed.
    Refused(Refusal),
    /// The connection was lost, or none was there in time; `maybe` it was carried out.
    Lost { maybe: bool },
    /// The session under which it was asked has ended.
    SessionOver,
    /// The answer has this many bytes.
    TooLarge(usize),
    /// The server's answer cannot be read.
    Garbled,
    /// The server will not have us.
    Barred(Error),
    /// The session was closed by us.
    Closed,
}

/// An answer, and when its request was sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) sent: Moment,
    pub(crate) result: Result<Reply, Fail>,
}

struct Request {
    code: i32,
    is_write: bool,
    body: Vec<u8>,
    path: String,
    generation: u64,
    watch: Option<oneshot::Sender<()>>,
    answer: oneshot::Sender<Answer>,
    /// When it is no longer to be sent.
    until: Moment,
    /// One place in the count of requests.
    _place: Place,
}

/// Counts a request for as long as it is there.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is known of the session.
#[derive(Debug, Default)]
pub(crate) struct Session {
    state: Mutex<State>,
    moved: Notify,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// Counts sessions; 0 before the first.
    generation: u64,
    /// The server's number of it, 0 while there is none.
    id: i64,
    timeout: Duration,
    /// When the request was sent that was answered last in this session.
    vouched: Moment,
    connected: bool,
    closed: bool,
    /// Why there is no connection.
    trouble: Option<Error>,
}

/// A session as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Now {
    pub(crate) generation: u64,
    pub(crate) id: i64,
    pub(crate) timeout: Duration,
    pub(crate) vouched: Moment,
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.moved.notify_waiters();
    }

    /// The present session, connected or not; `None` while there is none.
    pub(crate) fn now(&self) -> Option<Now> {
        let state = self.lock();
        (state.id != 0).then_some(Now {
            generation: state.generation,
            id: state.id,
            timeout: state.timeout,
            vouched: state.vouched,
        })
    }

    /// Why there is no connection, if there is none.
    pub(crate) fn trouble(&self) -> Option<Error> {
        self.lock().trouble.clone()
    }

    /// Waits for a connected session; without end, so for a caller with a limit.
    pub(crate) async fn connected(&self) -> Option<Now> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let (connected, closed) = {
                let state = self.lock();
                (state.connected, state.closed)
            };
            if closed {
                return None;
            }
            if connected && let Some(now) = self.now() {
                return Some(now);
            }
            moved.await;
        }
    }
}

/// A session with ZooKeeper. It reconnects by itself, and begins anew when it has ended.
///
/// The session is closed when this is dropped, as far as the store's thread lives long enough.
#[derive(Debug)]
pub(crate) struct Wire {
    requests: mpsc::UnboundedSender<Request>,
    session: Arc<Session>,
    places: Arc<AtomicUsize>,
    acl: Acl,
    patience: Duration,
}

impl Wire {
    /// Starts a session on this runtime, and does not wait for it. `keep` lives as long as the
    /// session's task.
    pub(crate) fn start(
        runtime: &Handle,
        config: WireConfig,
        hook: Hook,
        keep: impl Send + 'static,
    ) -> Wire {
        let (requests, queue) = mpsc::unbounded_channel();
        let session = Arc::new(Session::default());
        let patience = (config.timeout / 2).clamp(Duration::from_secs(1), Duration::from_secs(10));
        let acl = config.acl;
        let link = link::Link::new(config, hook, Arc::clone(&session), queue);
        runtime.spawn(async move {
            link.run().await;
            drop(keep);
        });
        Wire { requests, session, places: Arc::default(), acl, patience }
    }

    /// What is known of the session.
    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Sends a request in this session and no other. Requests are sent in the order of these calls,
    /// and answered so; dropped before it was sent, it never is.
    pub(crate) fn call(&self, generation: u64, op: &Op) -> Call {
        self.send(generation, op, None)
    }

    /// As [`Wire::call`]; `watch` is told, or dropped, when something happens at the path.
    pub(crate) fn watch(&self, generation: u64, op: &Op, watch: oneshot::Sender<()>) -> Call {
        self.send(generation, op, Some(watch))
    }

    fn send(&self, generation: u64, op: &Op, watch: Option<oneshot::Sender<()>>) -> Call {
        let now = BootClock.now();
        let mut body = jute::Out::default();
        op.encode(self.acl, &mut body);
        let (answer, reply) = oneshot::channel();
        let count = self.places.fetch_add(1, Ordering::Relaxed);
        let request = Request {
            code: op.code(),
            is_write: op.is_write(),
            body: body.0,
            path: if watch.is_some() { op.path().to_owned() } else { String::new() },
            generation,
            watch,
            answer,
            until: now + self.patience,
            _place: Place(Arc::clone(&self.places)),
        };
        // A refused request drops its sender: the call then says that it was lost.
        if count < REQUESTS_MAX {
            let _ = self.requests.send(request);
        }
        Call { sent: now, reply }
    }
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Call {
    sent: Moment,
    reply: oneshot::Receiver<Answer>,
}

impl Call {
    /// The answer.
    pub(crate) async fn answer(self) -> Answer {
        let none = Answer { sent: self.sent, result: Err(Fail::Lost { maybe: false }) };
        self.reply.await.unwrap_or(none)
    }
}
