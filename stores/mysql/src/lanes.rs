//! The connections on which requests are decided. Usually it is one; where it has to wait for a row
//! that somebody keeps locked, others take its place, up to a few.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Backoff, Error, ErrorKind, Result};
use tokio::sync::{Notify, oneshot};

use crate::core::{Answer, Core};
use crate::desk::Ask;
use crate::engine::Locked;
use crate::error::{Fail, closed, made};
use crate::lit::Sql;
use crate::session::{Session, Set};

/// The most connections for requests.
const LANES_MAX: usize = 4;
/// A connection busy for longer than this counts as taken.
const SLOW: Duration = Duration::from_millis(25);
/// For how long an additional connection is kept without use.
const SPARE_KEPT: Duration = Duration::from_secs(5);
/// How many requests are decided in one transaction.
const BATCH: usize = 64;
/// How many requests wait at most.
const QUEUE_MAX: usize = 10_000;

/// The connections for requests.
#[derive(Debug)]
pub(crate) struct Lanes {
    core: Arc<Core>,
    queue: Mutex<Queue>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    workers: usize,
    /// How many of them are not held up.
    free: usize,
    closed: bool,
}

#[derive(Debug)]
enum Request {
    Ask(Ask, oneshot::Sender<Result<Answer>>),
    Look(Sql, oneshot::Sender<Result<Looked>>),
}

/// What was read.
#[derive(Debug)]
pub(crate) struct Looked {
    pub(crate) sets: Vec<Set>,
}

impl Request {
    fn is_wanted(&self) -> bool {
        match self {
            Request::Ask(_, reply) => !reply.is_closed(),
            Request::Look(_, reply) => !reply.is_closed(),
        }
    }

    fn fail(self, error: &Error) {
        // Nobody may want it any more.
        match self {
            Request::Ask(_, reply) => drop(reply.send(Err(error.clone()))),
            Request::Look(_, reply) => drop(reply.send(Err(error.clone()))),
        }
    }
}

impl Lanes {
    /// Starts with this connection.
    pub(crate) fn start(core: Arc<Core>, first: Session) -> Arc<Lanes> {
        let queue = Queue { workers: 1, free: 1, ..Queue::default() };
        let lanes = Arc::new(Lanes { core, queue: Mutex::new(queue), ready: Notify::new() });
        let worker = Worker { lanes: Arc::clone(&lanes), session: Some(first), was_open: true };
        lanes.core.io.back().spawn(worker.work(false));
        lanes
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a request on one of the connections.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Ask(ask, reply))?;
        answer.await.unwrap_or_else(|_| Err(closed().maybe_applied()))
    }

    /// Reads.
    pub(crate) async fn look(&self, sql: Sql) -> Result<Looked> {
        let (reply, answer) = oneshot::channel();
        self.send(Request::Look(sql, reply))?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    fn send(&self, request: Request) -> Result<()> {
        let mut queue = self.lock();
        if queue.closed {
            return Err(closed());
        }
        if queue.requests.len() >= QUEUE_MAX {
            return Err(made(ErrorKind::Unavailable, "too many requests wait for a connection"));
        }
        queue.requests.push_back(request);
        drop(queue);
        self.ready.notify_one();
        Ok(())
    }

    /// Some requests, or `None` when the worker is not needed any more.
    async fn take(&self, spare: bool) -> Option<Vec<Request>> {
        loop {
            {
                let mut queue = self.lock();
                if queue.closed {
                    return None;
                }
                queue.requests.retain(Request::is_wanted);
                if !queue.requests.is_empty() {
                    let count = queue.requests.len().min(BATCH);
                    let batch = queue.requests.drain(..count).collect();
                    if !queue.requests.is_empty() {
                        self.ready.notify_one();
                    }
                    return Some(batch);
                }
            }
            if !spare {
                self.ready.notified().await;
            } else if tokio::time::timeout(SPARE_KEPT, self.ready.notified()).await.is_err() {
                return None;
            }
        }
    }

    /// A connection is held up: another takes its place.
    fn held_up(self: &Arc<Lanes>) {
        let mut queue = self.lock();
        queue.free -= 1;
        if queue.free == 0 && queue.workers < LANES_MAX && !queue.closed {
            queue.workers += 1;
            queue.free += 1;
            drop(queue);
            let worker = Worker { lanes: Arc::clone(self), session: None, was_open: false };
            self.core.io.back().spawn(worker.work(true));
        }
    }

    fn ended(&self) {
        let mut queue = self.lock();
        queue.workers -= 1;
        queue.free -= 1;
        drop(queue);
        // Whoever else is to end, ends.
        self.ready.notify_one();
    }

    /// Refuses what waits and what comes.
    pub(crate) fn close(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        let left = std::mem::take(&mut queue.requests);
        drop(queue);
        for request in left {
            request.fail(&closed());
        }
        // A permit for each that may be about to wait.
        self.ready.notify_waiters();
        self.ready.notify_one();
    }
}

/// One connection and the task that works on it.
struct Worker {
    lanes: Arc<Lanes>,
    session: Option<Session>,
    /// There was a connection before: another in its place has missed something.
    was_open: bool,
}

impl Worker {
    async fn work(mut self, spare: bool) {
        let lanes = Arc::clone(&self.lanes);
        let (first, cap) = (Duration::from_millis(10), Duration::from_millis(500));
        let mut backoff = lanes.core.backoff(first, cap);
        while let Some(batch) = lanes.take(spare).await {
            let mut running = std::pin::pin!(self.run(batch, &mut backoff));
            if tokio::time::timeout(SLOW, &mut running).await.is_err() {
                lanes.held_up();
                running.await;
                lanes.lock().free += 1;
            }
        }
        lanes.ended();
        if let Some(session) = self.session.take() {
            session.close().await;
        }
    }

    async fn run(&mut self, batch: Vec<Request>, backoff: &mut Backoff) {
        if let Err(error) = self.open().await {
            for request in batch {
                request.fail(&error);
            }
            if error.kind().is_transient() {
                tokio::time::sleep(backoff.next_wait()).await;
            }
            return;
        }
        backoff.reset();
        let (mut asks, mut replies) = (Vec::new(), Vec::new());
        for request in batch {
            match request {
                Request::Ask(ask, reply) => {
                    asks.push(ask);
                    replies.push(reply);
                }
                Request::Look(sql, reply) => drop(reply.send(self.look(&sql).await)),
            }
        }
        let answers: Vec<Option<Result<Answer>>> = if asks.len() > 1 {
            match self.together(&asks).await {
                Ok(answers) => answers,
                // One damaged row must not stop the others: each goes alone.
                Err(_) => asks.iter().map(|_| None).collect(),
            }
        } else {
            asks.iter().map(|_| None).collect()
        };
        for ((ask, reply), answer) in asks.iter().zip(replies).zip(answers) {
            let answer = match answer {
                Some(answer) => answer,
                None => self.one(ask).await,
            };
            drop(reply.send(answer));
        }
    }

    async fn open(&mut self) -> Result<&mut Session> {
        if self.session.as_ref().is_some_and(Session::is_broken) {
            self.session = None;
        }
        let session = match self.session.take() {
            Some(session) => session,
            None if self.was_open => self.lanes.core.redial().await?,
            None => self.lanes.core.dial().await?,
        };
        self.was_open = true;
        Ok(self.session.insert(session))
    }

    /// Verbs may be sent again: where the connection breaks, another is tried once.
    async fn one(&mut self, ask: &Ask) -> Result<Answer> {
        let core = Arc::clone(&self.lanes.core);
        let answer = core.one(self.open().await?, ask).await;
        match answer {
            Err(error) if self.is_worth_another(&error) => match self.open().await {
                Ok(session) => core.one(session, ask).await,
                Err(_) => Err(error),
            },
            answer => answer,
        }
    }

    async fn together(&mut self, asks: &[Ask]) -> Result<Vec<Option<Result<Answer>>>> {
        let core = Arc::clone(&self.lanes.core);
        core.together(self.open().await?, asks, Locked::Skip).await
    }

    async fn look(&mut self, sql: &Sql) -> Result<Looked> {
        let looked = self.open().await?.ask(sql).await.map_err(Fail::into_error);
        let sets = match looked {
            Err(error) if self.is_worth_another(&error) => {
                self.open().await?.ask(sql).await.map_err(Fail::into_error)?
            }
            looked => looked?,
        };
        Ok(Looked { sets })
    }

    fn is_worth_another(&self, error: &Error) -> bool {
        error.kind().is_transient() && self.session.as_ref().is_some_and(Session::is_broken)
    }
}
