//! A connection and the calls that travel on it, many in one message.
//!
//! Calls that come while a message is under way go together in the next, in one transaction: one
//! commit for all of them. Rows that somebody else has locked are skipped and tried again alone, on
//! a connection of its own, so that nobody waits for another's row.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Backoff, Clock, Error, ErrorKind, Moment, ResourceName, Result};
use leasehold_net::{BootClock, ServerClock, Skew};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::connect::{Connector, Opened, ended, next};
use crate::error::{DOING, Failed, failed, strange};
use crate::hub::Hub;
use crate::quick::{Crowds, Done, Quick, Take, Usual, is_forgotten};
use crate::schema::quote;

/// The most calls in one message.
const BATCH_MAX: usize = 64;
/// The most calls that wait for their turn.
const QUEUE_MAX: usize = 16_384;
/// How long an answer is waited for before the connection is given up: the server is silent, or its
/// commits are (a synchronous standby that is gone).
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// A step of the server's clock that is worth a look at all leases.
const STEP_TOLERATED: Duration = Duration::from_millis(50);

/// A call, and where its answer goes.
pub(crate) struct Call {
    pub(crate) name: ResourceName,
    pub(crate) json: String,
    pub(crate) manner: Manner,
    /// What it is if nobody else is there.
    pub(crate) usual: Option<Usual>,
    pub(crate) reply: oneshot::Sender<Result<Reply>>,
}

/// How a call may be treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    /// It waits a while for its row where somebody has that locked.
    Patient,
    /// Also, nothing is lost but a release if the server crashes before it is written.
    Lazy,
    /// Where somebody has its row locked the answer is `skipped`.
    Hasty,
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// Before it was sent, on the local clock.
    pub(crate) sent: Moment,
    pub(crate) answer: Value,
}

/// A plain read.
pub(crate) struct Query {
    pub(crate) sql: String,
    pub(crate) texts: Vec<Text>,
    pub(crate) reply: oneshot::Sender<Result<Vec<Row>>>,
}

/// A parameter of a read.
#[derive(Debug, Clone)]
pub(crate) enum Text {
    One(String),
    Many(Vec<String>),
    Int(i64),
}

enum Job {
    Call(Call),
    Query(Query),
}

impl Job {
    fn is_unwanted(&self) -> bool {
        match self {
            Job::Call(call) => call.reply.is_closed(),
            Job::Query(query) => query.reply.is_closed(),
        }
    }

    fn fail(self, error: Error) {
        // Whoever does not wait any more does not hear it.
        match self {
            Job::Call(call) => drop(call.reply.send(Err(error))),
            Job::Query(query) => drop(query.reply.send(Err(error))),
        }
    }
}

/// Which calls a line takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// All, many at once, skipping rows that are locked.
    Quick,
    /// Those that were skipped, of one name at a time, waiting a while for its row.
    Patient,
}

/// A connection, made when it is first needed and again when it breaks.
pub(crate) struct Line {
    kind: Kind,
    connector: Arc<Connector>,
    hub: Arc<Hub>,
    clock: Arc<ServerClock>,
    state: Mutex<State>,
    bell: Notify,
    started: AtomicBool,
    crowds: Crowds,
    /// Its last try to connect came to nothing.
    down: AtomicBool,
    /// Where it goes on if the runtime it was started on ends.
    back: Handle,
    home: Handle,
    patient: Option<Arc<Line>>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    first: Option<Opened>,
    closed: bool,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Why a connection is not served any more.
enum End {
    Closed,
    Broken(Error),
}

impl Line {
    /// A quick line on `home`, with a patient one beside it.
    pub(crate) fn new(
        connector: &Arc<Connector>,
        hub: &Arc<Hub>,
        clock: &Arc<ServerClock>,
        home: &Handle,
        back: &Handle,
    ) -> Arc<Line> {
        let make = |kind, patient| {
            Arc::new(Line {
                kind,
                connector: Arc::clone(connector),
                hub: Arc::clone(hub),
                clock: Arc::clone(clock),
                state: Mutex::default(),
                bell: Notify::new(),
                started: AtomicBool::new(false),
                crowds: Crowds::default(),
                down: AtomicBool::new(false),
                back: back.clone(),
                home: home.clone(),
                patient,
            })
        };
        let patient = make(Kind::Patient, None);
        make(Kind::Quick, Some(patient))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a connection that is there already.
    pub(crate) fn start_with(self: &Arc<Line>, opened: Opened) {
        self.lock().first = Some(opened);
        self.start();
    }

    /// Connects, if it has not yet.
    pub(crate) fn start(self: &Arc<Line>) {
        if !self.started.swap(true, Ordering::SeqCst) {
            Run { line: Arc::clone(self), at_back: false }.spawn(&self.home);
        }
    }

    /// Whether its last try to connect came to nothing.
    pub(crate) fn is_down(&self) -> bool {
        self.down.load(Ordering::SeqCst)
    }

    /// Ends it; what waits is told so.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.bell.notify_one();
        if let Some(patient) = &self.patient {
            patient.close();
        }
    }

    /// Sends a call and waits for its answer.
    pub(crate) async fn call(
        self: &Arc<Line>,
        name: &ResourceName,
        json: String,
        manner: Manner,
    ) -> Result<Reply> {
        self.send(name, json, manner).await.unwrap_or_else(|_| Err(ended()))
    }

    /// As [`Line::call`], with what the call is if nobody else is there.
    pub(crate) async fn call_usual(
        self: &Arc<Line>,
        name: &ResourceName,
        json: String,
        manner: Manner,
        usual: Option<Usual>,
    ) -> Result<Reply> {
        let (reply, answer) = oneshot::channel();
        self.push(Job::Call(Call { name: name.clone(), json, manner, usual, reply }));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    /// Sends a call; its answer comes by the channel.
    pub(crate) fn send(
        self: &Arc<Line>,
        name: &ResourceName,
        json: String,
        manner: Manner,
    ) -> oneshot::Receiver<Result<Reply>> {
        let (reply, answer) = oneshot::channel();
        self.push(Job::Call(Call { name: name.clone(), json, manner, usual: None, reply }));
        answer
    }

    /// Reads.
    pub(crate) async fn query(self: &Arc<Line>, sql: String, texts: Vec<Text>) -> Result<Vec<Row>> {
        let (reply, answer) = oneshot::channel();
        self.push(Job::Query(Query { sql, texts, reply }));
        answer.await.unwrap_or_else(|_| Err(ended()))
    }

    fn push(self: &Arc<Line>, job: Job) {
        let mut state = self.lock();
        let refusal = if state.closed {
            Some(Error::new(ErrorKind::Closed, DOING, "the client was closed"))
        } else if state.jobs.len() >= QUEUE_MAX {
            Some(Error::new(ErrorKind::Unavailable, DOING, "too many calls are under way"))
        } else {
            None
        };
        match refusal {
            Some(error) => {
                drop(state);
                job.fail(error);
            }
            None => {
                state.jobs.push_back(job);
                drop(state);
                self.start();
                self.bell.notify_one();
            }
        }
    }

    async fn run(self: &Arc<Line>) {
        let seed = u64::from(std::process::id()) ^ BootClock.now().as_nanos();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1), seed);
        let mut had_one = false;
        loop {
            let first = self.lock().first.take();
            let opened = match first {
                Some(opened) => Ok(opened),
                None => self.connector.open().await,
            };
            self.down.store(opened.is_err(), Ordering::SeqCst);
            let end = match opened {
                Ok(opened) => {
                    if had_one {
                        self.hub.disturb();
                    }
                    had_one = true;
                    backoff.reset();
                    self.serve(opened).await
                }
                Err(error) => End::Broken(error),
            };
            let error = match end {
                End::Broken(error) if !self.lock().closed => error,
                _ => break,
            };
            tracing::debug!(%error, "a connection to the store is down");
            self.fail_all(&error);
            // Woken by a new call it does not try more often.
            sleep(backoff.next_wait()).await;
        }
        self.fail_all(&Error::new(ErrorKind::Closed, DOING, "the client was closed"));
    }

    fn fail_all(&self, error: &Error) {
        let jobs = std::mem::take(&mut self.lock().jobs);
        for job in jobs {
            // They were not sent.
            let kind = error.kind();
            let detail = error.to_string();
            let detail = detail.strip_prefix(DOING).map_or(detail.as_str(), |d| {
                d.trim_start_matches(": ").trim_end_matches(" (it may have happened)")
            });
            job.fail(Error::new(kind, DOING, detail).caused_by(error.clone()));
        }
    }

    async fn serve(self: &Arc<Line>, opened: Opened) -> End {
        let Opened { client, mut messages, kept, .. } = opened;
        let end = {
            let mut work = std::pin::pin!(self.work(Desk { client: &client, kept, quick: None }));
            loop {
                tokio::select! {
                    biased;
                    message = next(&mut messages) => match message {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => match failed(error) {
                            Failed::Connection(e) | Failed::Statement(e) => break End::Broken(e),
                        },
                        None => break End::Broken(ended()),
                    },
                    end = &mut work => break end,
                }
            }
        };
        drop(client);
        if matches!(end, End::Closed) {
            // Says goodbye.
            let _ = timeout(Duration::from_millis(200), async {
                while let Some(Ok(_)) = next(&mut messages).await {}
            })
            .await;
        }
        end
    }

    async fn work(self: &Arc<Line>, mut desk: Desk<'_>) -> End {
        let sql =
            format!("CALL {}.leasehold_serve($1, $2, $3, NULL)", quote(&self.connector.schema));
        loop {
            let Some(batch) = self.next_batch().await else { return End::Closed };
            let done = match batch {
                Batch::Calls(calls) => match self.usual(&mut desk, calls).await {
                    Ok(calls) if calls.is_empty() => Ok(()),
                    Ok(calls) => self.fly(desk.client, &sql, calls).await,
                    Err(error) => Err(error),
                },
                Batch::Query(query) => look(desk.client, query).await,
            };
            if let Err(error) = done {
                return End::Broken(error);
            }
        }
    }

    async fn next_batch(&self) -> Option<Batch> {
        loop {
            {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                if let Some(batch) = self.take(&mut state.jobs) {
                    return Some(batch);
                }
            }
            self.bell.notified().await;
        }
    }

    fn take(&self, jobs: &mut VecDeque<Job>) -> Option<Batch> {
        let mut calls: Vec<Call> = Vec::new();
        let mut others = VecDeque::new();
        while let Some(job) = jobs.pop_front() {
            match job {
                job if job.is_unwanted() => {}
                Job::Query(query) if calls.is_empty() && others.is_empty() => {
                    return Some(Batch::Query(query));
                }
                Job::Call(call)
                    if self.kind == Kind::Quick
                        || calls.first().is_none_or(|first| first.name == call.name) =>
                {
                    calls.push(call);
                }
                job => others.push_back(job),
            }
            if calls.len() == BATCH_MAX {
                break;
            }
        }
        while let Some(job) = others.pop_back() {
            jobs.push_front(job);
        }
        // No two messages wait for each other's rows if all take them in one order.
        calls.sort_by(|a, b| a.name.cmp(&b.name));
        (!calls.is_empty()).then_some(Batch::Calls(calls))
    }

    /// Answers those calls that are the usual case, by one statement a kind; gives back the rest.
    async fn usual(self: &Arc<Line>, desk: &mut Desk<'_>, calls: Vec<Call>) -> Result<Vec<Call>> {
        let is_alone = |n: usize| {
            let same = |m: Option<usize>| m.and_then(|m| calls.get(m)).map(|call| &call.name);
            let name = same(Some(n));
            same(n.checked_sub(1)) != name && same(Some(n + 1)) != name
        };
        let is_usual = |n: usize, call: &Call| {
            call.usual.is_some() && is_alone(n) && !self.crowds.is_at(&call.name)
        };
        let which: Vec<bool> = calls.iter().enumerate().map(|(n, c)| is_usual(n, c)).collect();
        if !desk.kept || !which.contains(&true) {
            return Ok(calls);
        }
        let (mut takes, mut frees) = (Vec::new(), Vec::new());
        for (call, _) in calls.iter().zip(&which).filter(|(_, is_usual)| **is_usual) {
            match &call.usual {
                Some(Usual::Take(take)) => takes.push((&call.name, take)),
                Some(Usual::Free(claim)) => frees.push((&call.name, claim)),
                None => {}
            }
        }
        let (sent, received, done) = match self.statements(desk, &takes, &frees).await {
            Ok(done) => done,
            Err(Failed::Statement(_)) => return Ok(calls),
            Err(Failed::Connection(error)) => {
                calls.into_iter().for_each(|call| Job::Call(call).fail(error.clone()));
                return Err(error);
            }
        };
        if let Some(done) = done.first() {
            self.observe(sent, received, done.at_us);
        }
        let mut answers: HashMap<String, Value> =
            done.into_iter().map(|done| (done.name, done.answer)).collect();
        let mut rest = Vec::new();
        for (call, is_usual) in calls.into_iter().zip(which) {
            match answers.remove(call.name.as_str()).filter(|_| is_usual) {
                // Whoever does not wait any more does not hear it.
                Some(answer) => drop(call.reply.send(Ok(Reply { sent, answer }))),
                None => rest.push(call),
            }
        }
        Ok(rest)
    }

    /// Both statements, sent together; before they were sent, after the answer, and what they did.
    async fn statements(
        &self,
        desk: &mut Desk<'_>,
        takes: &[(&ResourceName, &Take)],
        frees: &[(&ResourceName, &String)],
    ) -> Result<(Moment, Moment, Vec<Done>), Failed> {
        let client = desk.client;
        let both = async {
            if desk.quick.is_none() {
                desk.quick = Some(Quick::prepare(client, &self.connector.schema).await?);
            }
            let sent = BootClock.now();
            let mut done = Vec::new();
            if let Some(quick) = &desk.quick {
                let (taken, freed) =
                    tokio::try_join!(quick.take(client, takes), quick.free(client, frees))?;
                done.extend(taken.into_iter().chain(freed));
            }
            Ok((sent, BootClock.now(), done))
        };
        match timeout(ANSWER_WITHIN, both).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                desk.kept = !is_forgotten(&error);
                Err(failed(error))
            }
            Err(_) => Err(Failed::Connection(silent())),
        }
    }

    /// Looks at the server's clock.
    fn observe(&self, sent: Moment, received: Moment, at_us: u64) {
        if self.clock.observe(sent, received, at_us, STEP_TOLERATED) != Skew::Steady {
            tracing::warn!("the server's clock has stepped");
            self.hub.disturb();
        }
    }

    /// Sends calls in one message and hands out the answers. Fails if the connection did.
    async fn fly(self: &Arc<Line>, client: &Client, sql: &str, calls: Vec<Call>) -> Result<()> {
        match self.transact(client, sql, &calls).await {
            Ok((sent, answers)) => {
                self.hand_out(sent, calls, answers);
                Ok(())
            }
            Err(Failed::Connection(error)) => {
                calls.into_iter().for_each(|call| Job::Call(call).fail(error.clone()));
                Err(error)
            }
            // One sick row must not cost the others their answers: each alone.
            Err(Failed::Statement(_)) if calls.len() > 1 => {
                for call in calls {
                    let one = std::slice::from_ref(&call);
                    match self.transact(client, sql, one).await {
                        Ok((sent, answers)) => self.hand_out(sent, vec![call], answers),
                        Err(Failed::Statement(error)) => Job::Call(call).fail(error),
                        Err(Failed::Connection(error)) => {
                            Job::Call(call).fail(error.clone());
                            return Err(error);
                        }
                    }
                }
                Ok(())
            }
            Err(Failed::Statement(error)) => {
                calls.into_iter().for_each(|call| Job::Call(call).fail(error.clone()));
                Ok(())
            }
        }
    }

    async fn transact(
        &self,
        client: &Client,
        sql: &str,
        calls: &[Call],
    ) -> Result<(Moment, Vec<Value>), Failed> {
        let all: Vec<&str> = calls.iter().map(|call| call.json.as_str()).collect();
        let text = format!("[{}]", all.join(","));
        let waits = self.kind == Kind::Patient;
        let lazy = calls.iter().all(|call| call.manner == Manner::Lazy);
        let params: [(&(dyn ToSql + Sync), Type); 3] =
            [(&text, Type::TEXT), (&waits, Type::BOOL), (&lazy, Type::BOOL)];
        let sent = BootClock.now();
        let row = match timeout(ANSWER_WITHIN, client.query_typed_one(sql, &params)).await {
            Ok(row) => row.map_err(failed)?,
            Err(_) => return Err(Failed::Connection(silent())),
        };
        let received = BootClock.now();
        let answers: String = row.try_get(0).map_err(failed)?;
        let answers: Value = serde_json::from_str(&answers)
            .map_err(|e| Failed::Statement(strange(&e.to_string())))?;
        if let Some(at) = answers.get("at").and_then(Value::as_u64) {
            self.observe(sent, received, at);
        }
        match answers.get("all").and_then(Value::as_array) {
            Some(all) if all.len() == calls.len() => Ok((sent, all.clone())),
            _ => Err(Failed::Statement(strange("answers are missing"))),
        }
    }

    fn hand_out(&self, sent: Moment, calls: Vec<Call>, answers: Vec<Value>) {
        for (call, answer) in calls.into_iter().zip(answers) {
            self.crowds.note(&call.name, call.usual.is_some(), &answer);
            let skipped = answer.get("is").and_then(Value::as_str) == Some("skipped");
            match &self.patient {
                Some(patient) if skipped && call.manner != Manner::Hasty => {
                    patient.push(Job::Call(call))
                }
                _ => drop(call.reply.send(Ok(Reply { sent, answer }))),
            }
        }
    }
}

/// A connection at work.
struct Desk<'c> {
    client: &'c Client,
    /// Whether it stays one session.
    kept: bool,
    /// Prepared when first needed.
    quick: Option<Quick>,
}

enum Batch {
    Calls(Vec<Call>),
    Query(Query),
}

async fn look(client: &Client, query: Query) -> Result<()> {
    let params: Vec<(&(dyn ToSql + Sync), Type)> = query
        .texts
        .iter()
        .map(|text| match text {
            Text::One(text) => (text as &(dyn ToSql + Sync), Type::TEXT),
            Text::Many(texts) => (texts as _, Type::TEXT_ARRAY),
            Text::Int(number) => (number as _, Type::INT8),
        })
        .collect();
    let rows = match timeout(ANSWER_WITHIN, client.query_typed(&query.sql, &params)).await {
        Ok(rows) => rows.map_err(failed),
        Err(_) => Err(Failed::Connection(silent())),
    };
    match rows {
        Ok(rows) => drop(query.reply.send(Ok(rows))),
        Err(Failed::Statement(error)) => drop(query.reply.send(Err(error))),
        Err(Failed::Connection(error)) => {
            drop(query.reply.send(Err(error.clone())));
            return Err(error);
        }
    }
    Ok(())
}

fn silent() -> Error {
    let detail = format!("the server did not answer within {ANSWER_WITHIN:?}");
    Error::new(ErrorKind::Unreachable, DOING, detail).maybe_applied()
}

/// A running line. If the runtime it runs on ends, it goes on at the back.
struct Run {
    line: Arc<Line>,
    at_back: bool,
}

impl Run {
    fn spawn(self, at: &Handle) {
        at.spawn(async move {
            let mut run = self;
            run.line.run().await;
            run.at_back = true; // it has ended by itself
        });
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.at_back && !self.line.lock().closed {
            let line = Arc::clone(&self.line);
            let back = line.back.clone();
            Run { line, at_back: true }.spawn(&back);
        }
    }
}
