//! Finding a server, and keeping the session over reconnects.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, Clock as _, Error, ErrorKind, Moment};
use leasehold_net::BootClock;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::jute::Out;
use super::proto::{Connected, framed, hello};
use super::{Answer, Event, Fail, Hook, Request, Session, WireConfig};

/// The port of ZooKeeper where none is named.
pub(crate) const PORT: u16 = 2181;
/// The largest first answer of a server.
const HELLO_MAX: usize = 4096;
/// The number of the answer to credentials.
pub(super) const XID_AUTH: i32 = -4;

/// A connection to a server, with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// The session's task.
pub(super) struct Link {
    pub(super) config: WireConfig,
    hook: Hook,
    pub(super) session: Arc<Session>,
    pub(super) queue: mpsc::UnboundedReceiver<Request>,
    /// What was taken from the queue while there was no connection.
    pub(super) waiting: VecDeque<Request>,
    /// By path, who is told when something happens there.
    pub(super) watches: HashMap<String, Vec<oneshot::Sender<()>>>,
    pub(super) zxid: i64,
    id: i64,
    password: Vec<u8>,
    /// Which server is tried next.
    next: usize,
    backoff: Backoff,
}

/// Why a connection or the task ended.
pub(super) enum End {
    /// The connection broke, or never came about.
    Broken(Error),
    /// The session was closed, or nobody is left who could use it.
    Closed,
}

/// A connection on which the server knows us.
pub(super) struct Greeted {
    stream: Box<dyn Stream>,
    hello: Connected,
    /// Before the first frame was sent.
    sent: Moment,
}

impl Link {
    pub(super) fn new(
        config: WireConfig,
        hook: Hook,
        session: Arc<Session>,
        queue: mpsc::UnboundedReceiver<Request>,
    ) -> Link {
        let mut seed = [0; 8];
        // Without random numbers all clients try the servers in one order, and that is all.
        let _ = getrandom::fill(&mut seed);
        let seed = u64::from_ne_bytes(seed);
        let count = u64::try_from(config.hosts.len().max(1)).unwrap_or(1);
        Link {
            hook,
            session,
            queue,
            waiting: VecDeque::new(),
            watches: HashMap::new(),
            zxid: 0,
            id: 0,
            password: vec![0; 16],
            next: usize::try_from(seed % count).unwrap_or(0),
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1), seed),
            config,
        }
    }

    /// Runs until the session is closed or nobody is left who could use it.
    pub(super) async fn run(mut self) {
        loop {
            let end = match self.connect().await {
                Ok(greeted) => match self.admit(greeted) {
                    Some(stream) => self.serve(stream).await,
                    None => continue,
                },
                Err(end) => end,
            };
            self.watches.clear();
            match end {
                End::Broken(error) => {
                    self.session.change(|state| {
                        state.connected = false;
                        state.trouble = Some(error);
                    });
                    (self.hook)(Event::Cut);
                }
                End::Closed => break,
            }
        }
        self.session.change(|state| {
            state.connected = false;
            state.closed = true;
            state.id = 0;
        });
        self.queue.close();
        while let Ok(request) = self.queue.try_recv() {
            self.waiting.push_back(request);
        }
        for request in self.waiting.drain(..) {
            refuse(request, Fail::Closed);
        }
    }

    /// One server after the other, until one greets us.
    async fn connect(&mut self) -> Result<Greeted, End> {
        let mut failed = 0;
        loop {
            self.give_up();
            let attempt = self.attempt();
            match self.while_queueing(attempt).await? {
                Ok(greeted) => {
                    self.backoff.reset();
                    return Ok(greeted);
                }
                Err(error) => {
                    tracing::debug!(%error, "a ZooKeeper server was not reached");
                    self.session.change(|state| state.trouble = Some(error));
                    failed += 1;
                }
            }
            // All are tried before it waits.
            if failed >= self.config.hosts.len() {
                failed = 0;
                let wait = self.backoff.next_wait();
                self.while_queueing(async move { tokio::time::sleep(wait).await }).await?;
            }
        }
    }

    /// Sees something through while requests are taken from the queue, and those whose time is up
    /// are refused.
    async fn while_queueing<T>(&mut self, work: impl Future<Output = T>) -> Result<T, End> {
        let mut work = std::pin::pin!(work);
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                done = work.as_mut() => return Ok(done),
                request = self.queue.recv() => match request {
                    Some(request) if request.code == CLOSE => {
                        refuse(request, Fail::Lost { maybe: false });
                        return Err(End::Closed);
                    }
                    Some(request) => self.waiting.push_back(request),
                    None => return Err(End::Closed),
                },
                _ = tick.tick() => {
                    let now = BootClock.now();
                    let (keep, late): (VecDeque<_>, VecDeque<_>) =
                        self.waiting.drain(..).partition(|r| r.until > now && !r.answer.is_closed());
                    self.waiting = keep;
                    for request in late {
                        refuse(request, Fail::Lost { maybe: false });
                    }
                }
            }
        }
    }

    fn attempt(&mut self) -> impl Future<Output = Result<Greeted, Error>> + use<> {
        let at = self.next % self.config.hosts.len().max(1);
        self.next = at + 1;
        let host = self.config.hosts.get(at).cloned();
        let tls = self.config.tls.clone();
        let login = self.config.login.clone();
        let timeout = self.config.timeout;
        let limit = (timeout / 5).clamp(Duration::from_millis(200), Duration::from_secs(3));
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let first = hello(self.zxid, ms, self.id, &self.password);
        async move {
            let Some(host) = host else { return Err(unreached("no server is named")) };
            let named = |what: &str| unreached(format!("{host}: {what}"));
            let attempt = async {
                let (name, port) = host.or_port(PORT);
                let stream = TcpStream::connect((name.as_str(), port)).await;
                let stream = stream.map_err(|e| named(&e.to_string()))?;
                stream.set_nodelay(true).map_err(|e| named(&e.to_string()))?;
                let mut stream: Box<dyn Stream> = match tls {
                    None => Box::new(stream),
                    Some((config, other)) => {
                        let name = ServerName::try_from(other.unwrap_or(name))
                            .map_err(|e| named(&e.to_string()))?;
                        let connected = TlsConnector::from(config).connect(name, stream).await;
                        Box::new(connected.map_err(|e| named(&e.to_string()))?)
                    }
                };
                let sent = BootClock.now();
                stream.write_all(&first).await.map_err(|e| named(&e.to_string()))?;
                stream.flush().await.map_err(|e| named(&e.to_string()))?;
                let hello = read_hello(&mut stream).await.map_err(|e| named(&e))?;
                if let Some(login) = login {
                    let frame = credentials(login.expose());
                    stream.write_all(&frame).await.map_err(|e| named(&e.to_string()))?;
                }
                Ok(Greeted { stream, hello, sent })
            };
            match tokio::time::timeout(limit, attempt).await {
                Ok(greeted) => greeted,
                Err(_) => Err(named("it did not answer in time")),
            }
        }
    }

    /// Takes in what a server says of the session; `None` if it has ended and a new one is to be
    /// asked for.
    fn admit(&mut self, greeted: Greeted) -> Option<Box<dyn Stream>> {
        let Greeted { stream, hello, sent } = greeted;
        let timeout = Duration::from_millis(u64::try_from(hello.timeout_ms).unwrap_or(0));
        if hello.session == 0 {
            self.forget();
            return None;
        }
        if self.id != 0 && hello.session != self.id {
            // ClickHouse Keeper does so without a word.
            self.forget();
        }
        let before = self.session.lock().timeout;
        if self.id != 0 && timeout < before {
            // What was believed by the longer timeout may end before that: better now than unseen.
            tracing::warn!(?before, ?timeout, "a ZooKeeper server cut the session's timeout");
            self.forget();
            return None;
        }
        let is_new = self.id == 0;
        self.id = hello.session;
        self.password.clone_from(&hello.password);
        self.session.change(|state| {
            if is_new {
                state.generation += 1;
            }
            state.id = hello.session;
            state.timeout = timeout;
            state.vouched = sent;
            state.connected = true;
            state.trouble = None;
        });
        (self.hook)(Event::Connected);
        Some(stream)
    }

    /// A session that no server has known for longer than its timeout is over, whatever the servers
    /// say. Those that lost their data would refuse us for ever as one who has seen more than they.
    fn give_up(&mut self) {
        let (timeout, vouched) = {
            let state = self.session.lock();
            (state.timeout, state.vouched)
        };
        if self.id != 0 && BootClock.now() > vouched + timeout + timeout / 3 {
            self.forget();
            self.zxid = 0;
        }
    }

    /// The session has ended.
    fn forget(&mut self) {
        if self.id == 0 {
            return;
        }
        self.id = 0;
        self.password = vec![0; 16];
        let mut generation = 0;
        self.session.change(|state| {
            generation = state.generation;
            state.id = 0;
            state.connected = false;
        });
        (self.hook)(Event::Over { generation });
    }

    pub(super) fn vouch(&self, sent: Moment) {
        let mut state = self.session.lock();
        state.vouched = state.vouched.max(sent);
    }
}

pub(super) const CLOSE: i32 = -11;

pub(super) fn refuse(request: Request, fail: Fail) {
    let _ = request.answer.send(Answer { sent: BootClock.now(), result: Err(fail) });
}

async fn read_hello(stream: &mut Box<dyn Stream>) -> Result<Connected, String> {
    let mut length = [0; 4];
    let closed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            "it closed the connection: it has no quorum, or has too many clients".to_owned()
        }
        _ => error.to_string(),
    };
    stream.read_exact(&mut length).await.map_err(closed)?;
    let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > HELLO_MAX {
        return Err("it is no ZooKeeper, or wants TLS".into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await.map_err(closed)?;
    let hello = Connected::decode(&frame);
    let hello = hello.map_err(|_| "its first answer cannot be read".to_owned())?;
    if hello.read_only {
        return Err("it is read-only: it has no quorum".into());
    }
    Ok(hello)
}

fn credentials(login: &str) -> Vec<u8> {
    let mut out = Out::default();
    out.int(XID_AUTH).int(100).int(0).text("digest").text(login);
    framed(out)
}

pub(super) fn unreached(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, "reach ZooKeeper", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_net::HostPort;
    use std::sync::Mutex;

    fn link() -> (Link, Arc<Mutex<Vec<Event>>>) {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let told = Arc::clone(&events);
        let config = WireConfig {
            hosts: vec![HostPort { host: "127.0.0.1".into(), port: None }],
            timeout: Duration::from_secs(6),
            login: None,
            acl: super::super::Acl::Open,
            tls: None,
            answer_max: 1 << 20,
        };
        let hook = Box::new(move |event| told.lock().unwrap().push(event));
        let link = Link::new(config, hook, Arc::default(), mpsc::unbounded_channel().1);
        (link, events)
    }

    fn greeted(session: i64, timeout_ms: i32) -> Greeted {
        let hello = Connected { timeout_ms, session, password: vec![7; 16], read_only: false };
        Greeted { stream: Box::new(tokio::io::duplex(1).0), hello, sent: BootClock.now() }
    }

    #[test]
    fn a_server_that_gives_another_session_without_a_word_has_ended_ours() {
        let (mut link, events) = link();
        assert!(link.admit(greeted(5, 6000)).is_some());
        assert!(link.admit(greeted(5, 6000)).is_some());
        assert_eq!(link.session.now().unwrap().generation, 1, "still the same session");
        events.lock().unwrap().clear();
        assert!(link.admit(greeted(9, 6000)).is_some());
        let now = link.session.now().unwrap();
        assert_eq!((now.generation, now.id), (2, 9));
        let told = std::mem::take(&mut *events.lock().unwrap());
        assert_eq!(told, [Event::Over { generation: 1 }, Event::Connected]);
    }

    #[test]
    fn a_session_that_has_ended_or_whose_timeout_was_cut_is_left() {
        for hello in [greeted(0, 0), greeted(5, 3000)] {
            let (mut link, events) = link();
            assert!(link.admit(greeted(5, 6000)).is_some());
            assert!(link.admit(hello).is_none());
            assert_eq!(link.session.now(), None);
            let told = events.lock().unwrap().clone();
            assert_eq!(told.last(), Some(&Event::Over { generation: 1 }));
        }
    }

    #[test]
    fn a_session_of_which_nobody_has_heard_for_long_is_given_up() {
        let (mut link, events) = link();
        assert!(link.admit(greeted(5, 6000)).is_some());
        link.give_up();
        assert!(link.session.now().is_some());
        link.session.lock().vouched = Moment::START;
        link.zxid = 7;
        link.give_up();
        assert_eq!((link.session.now(), link.zxid), (None, 0));
        assert_eq!(events.lock().unwrap().last(), Some(&Event::Over { generation: 1 }));
    }
}
