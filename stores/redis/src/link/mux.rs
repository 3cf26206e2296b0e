//! One connection that many callers share: commands go out together, answers come back in order.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind};
use rustix::net::Shutdown;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::dial::Identity;
use super::gathered::Gathered;
use super::pipe::{Broken, Inlet, Out, Pipe};
use super::refusal::DOING;
use super::resp::Reply;
use super::script::Usual;

/// How many bytes of commands may wait to be sent.
const WAITING_MAX: usize = 32 * 1024 * 1024;
/// How many answers may be waited for.
const PENDING_MAX: usize = 128 * 1024;

/// From how many commands under way on others are gathered until an answer comes.
const UNDER_WAY: usize = 2;

/// What came of a command: its answer, or why there is none.
pub(crate) type Outcome = Result<Reply, Error>;

/// A connection that many callers share.
///
/// A command is written by the caller itself where nothing else is under way; otherwise by the
/// connection's task, with all that came together. Answers are never waited for longer than their
/// limit: then the connection is given up, since all behind them would wait as well.
pub(crate) struct Mux {
    pub(crate) identity: Identity,
    socket: OwnedWriteHalf,
    state: Mutex<State>,
}

struct State {
    out: Out,
    /// What is told together at the next writing, by kind.
    gathered: Vec<Gathered>,
    pending: VecDeque<Pending>,
    /// How many answers came together last: more than one means that callers come together too.
    batch: usize,
    /// Whether the task's timer runs.
    timed: bool,
    task: Option<Waker>,
    ended: Option<Ended>,
}

/// An answer that is waited for.
struct Pending {
    to: To,
    due: Instant,
}

/// Who waits for an answer.
enum To {
    /// It is thrown away.
    Nobody,
    One(oneshot::Sender<Outcome>),
    /// The time and one part of it for each.
    Each(Vec<oneshot::Sender<Outcome>>),
}

impl To {
    fn len(&self) -> usize {
        if let To::Each(all) = self { all.len() } else { 1 }
    }

    /// Gives each its part.
    fn deal(self, reply: Reply, mut give: impl FnMut(oneshot::Sender<Outcome>, Reply)) {
        match self {
            To::Nobody => {}
            To::One(to) => give(to, reply),
            To::Each(all) => match reply {
                Reply::Array(items) if items.len() == all.len() + 1 => {
                    let mut items = items.into_iter();
                    let time = items.next().unwrap_or(Reply::Nil);
                    for (to, item) in all.into_iter().zip(items) {
                        give(to, Reply::Array(vec![time.clone(), item]));
                    }
                }
                reply => all.into_iter().for_each(|to| give(to, reply.clone())),
            },
        }
    }

    fn fail(self, error: &Error) {
        let senders = match self {
            To::Nobody => Vec::new(),
            To::One(to) => vec![to],
            To::Each(all) => all,
        };
        for to in senders {
            let _ = to.send(Err(error.clone()));
        }
    }
}

enum Ended {
    /// To be ended by the task.
    Asked(&'static str),
    Done(String),
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) why: Broken,
    /// Whether an answer was waited for.
    pub(crate) cut_short: bool,
}

impl fmt::Debug for Mux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mux").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Mux {
    /// Shares a connection; the task has to run where the connection was made.
    pub(crate) fn over(
        pipe: Pipe,
        identity: Identity,
    ) -> (Arc<Mux>, impl Future<Output = End> + Send + 'static) {
        let Pipe { socket, out, inlet } = pipe;
        let state = State {
            out,
            gathered: Vec::new(),
            pending: VecDeque::new(),
            batch: 0,
            timed: false,
            task: None,
            ended: None,
        };
        let mux = Arc::new(Mux { identity, socket, state: Mutex::new(state) });
        let task = Task { mux: Arc::clone(&mux), inlet, timer: None, arrived: Vec::new() };
        (mux, task)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends commands, of whose answers each is waited for by one of those given back; the first
    /// `unwanted` answers are thrown away.
    ///
    /// # Errors
    ///
    /// `Unreachable`, and then nothing was sent, where the connection has ended.
    pub(crate) fn send(
        &self,
        unwanted: usize,
        wanted: usize,
        limit: Duration,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<Answered>, Error> {
        let mut answers = Vec::with_capacity(wanted);
        let senders = (0..wanted).map(|_| {
            let (sender, receiver) = oneshot::channel();
            answers.push(Answered(receiver));
            To::One(sender)
        });
        let senders = (0..unwanted).map(|_| To::Nobody).chain(senders);
        self.enqueue(senders, limit, write)?;
        Ok(answers)
    }

    /// Sends one command.
    ///
    /// # Errors
    ///
    /// As [`Mux::send`].
    pub(crate) fn send_one(
        &self,
        limit: Duration,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Answered, Error> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(std::iter::once(To::One(sender)), limit, write)?;
        Ok(Answered(receiver))
    }

    /// Sends a script of what is usual: by itself where nothing else is under way, otherwise in one
    /// with all of its kind that come before the next writing.
    ///
    /// # Errors
    ///
    /// As [`Mux::send`].
    pub(crate) fn send_usual(
        &self,
        limit: Duration,
        usual: &'static Usual,
        keys: &[&[u8]],
        same: &[&[u8]],
        args: &[&[u8]],
    ) -> Result<Answered, Error> {
        let (sender, receiver) = oneshot::channel();
        let due = Instant::now() + limit;
        let mut state = self.ready()?;
        let alone = state.is_alone();
        let at = state.gathered.iter().position(|gathered| gathered.is_of(usual));
        let at = at.unwrap_or_else(|| {
            state.gathered.push(Gathered::new(usual, due));
            state.gathered.len() - 1
        });
        let is_full = state.gathered[at].add(keys, same, args, sender);
        if alone || is_full {
            state.seal();
        }
        self.sent(state, alone);
        Ok(Answered(receiver))
    }

    fn enqueue(
        &self,
        senders: impl Iterator<Item = To>,
        limit: Duration,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Error> {
        let due = Instant::now() + limit;
        let mut state = self.ready()?;
        let alone = state.is_alone();
        state.seal();
        write(&mut state.out.buffer);
        state.pending.extend(senders.map(|to| Pending { to, due }));
        self.sent(state, alone);
        Ok(())
    }

    /// The state, where something can be sent.
    fn ready(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.state();
        match &state.ended {
            Some(Ended::Done(why)) => return Err(unsent(why)),
            Some(Ended::Asked(why)) => return Err(unsent(why)),
            None => {}
        }
        if state.out.buffer.len() > WAITING_MAX || state.pending.len() > PENDING_MAX {
            return Err(Error::new(ErrorKind::Unavailable, DOING, "too much is under way"));
        }
        Ok(state)
    }

    /// Sees that what was added goes out: at once, or by the task.
    fn sent(&self, mut state: MutexGuard<'_, State>, alone: bool) {
        // An error will be met by the task too.
        let all_out = alone && state.out.flush(&self.socket).unwrap_or(false);
        if !all_out || !state.timed {
            let task = state.task.take();
            drop(state);
            if let Some(task) = task {
                task.wake();
            }
        }
    }

    /// Ends the connection; what is under way is lost.
    pub(crate) fn end(&self, why: &'static str) {
        let mut state = self.state();
        if state.ended.is_none() {
            state.ended = Some(Ended::Asked(why));
        }
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }
}

impl State {
    fn is_alone(&self) -> bool {
        self.pending.is_empty()
            && self.batch <= 1
            && self.gathered.is_empty()
            && self.out.is_empty()
    }

    /// Writes what was gathered.
    fn seal(&mut self) {
        for gathered in self.gathered.drain(..) {
            let (mut senders, due) = gathered.write(&mut self.out.buffer);
            let to = match senders.len() {
                1 => senders.pop().map_or(To::Nobody, To::One),
                _ => To::Each(senders),
            };
            self.pending.push_back(Pending { to, due });
        }
    }
}

fn unsent(why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, DOING, format!("the connection was lost: {why}"))
}

/// The answer to a command that was sent.
pub(crate) struct Answered(oneshot::Receiver<Outcome>);

impl Future for Answered {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        Pin::new(&mut self.0).poll(cx).map(|answered| {
            answered.unwrap_or_else(|_| Err(unsent("its task has ended").maybe_applied()))
        })
    }
}

/// Reads the answers, and writes what the callers did not.
struct Task {
    mux: Arc<Mux>,
    inlet: Inlet,
    timer: Option<Pin<Box<Sleep>>>,
    arrived: Vec<(oneshot::Sender<Outcome>, Reply)>,
}

impl Future for Task {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        match self.turn(cx) {
            Ok(()) => Poll::Pending,
            Err(why) => Poll::Ready(self.finish(why)),
        }
    }
}

impl Task {
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        self.write(cx)?;
        while let Poll::Ready(length) = self.inlet.poll_chunk(cx) {
            match length? {
                0 => return Err(Broken::Closed),
                length => self.take_in(length)?,
            }
        }
        // TLS may have something to say by itself.
        self.write(cx)?;
        self.time(cx)
    }

    fn write(&self, cx: &mut Context<'_>) -> Result<(), Broken> {
        let mut state = self.mux.state();
        if let Some(Ended::Asked(why)) = state.ended {
            return Err(Broken::Dropped(why));
        }
        if state.task.as_ref().is_none_or(|task| !task.will_wake(cx.waker())) {
            state.task = Some(cx.waker().clone());
        }
        // While answers are under way more may come to go with them.
        if state.pending.len() < UNDER_WAY {
            state.seal();
        }
        while !state.out.flush(&self.mux.socket)? {
            if self.mux.socket.as_ref().poll_write_ready(cx)?.is_pending() {
                break;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, length: usize) -> Result<(), Broken> {
        let mut state = self.mux.state();
        self.inlet.take_in(length, &mut state.out)?;
        let mut batch = 0;
        let mut broken = None;
        loop {
            match self.inlet.next_reply() {
                Ok(None) => break,
                Ok(Some(Reply::Push(_))) => {}
                Ok(Some(reply)) => match state.pending.pop_front() {
                    Some(pending) => {
                        batch += pending.to.len();
                        pending.to.deal(reply, |to, part| self.arrived.push((to, part)));
                    }
                    None => {
                        // A refusal unasked for says why the server hangs up.
                        broken = Some(match reply {
                            Reply::Error(text) if text.contains("max number of clients") => {
                                Broken::Dropped("the server has all the connections it allows")
                            }
                            _ => Broken::Protocol("an answer to nothing"),
                        });
                        break;
                    }
                },
                Err(why) => {
                    broken = Some(why);
                    break;
                }
            }
        }
        if batch > 0 {
            state.batch = batch;
        }
        drop(state);
        for (to, reply) in self.arrived.drain(..) {
            // Whoever does not wait any more does not need it.
            let _ = to.send(Ok(reply));
        }
        broken.map_or(Ok(()), Err)
    }

    /// Sees that no answer is waited for beyond its limit. The timer runs on while commands come,
    /// so that a command does not have to set it.
    fn time(&mut self, cx: &mut Context<'_>) -> Result<(), Broken> {
        let mut state = self.mux.state();
        loop {
            let oldest = state.pending.front().map(|pending| pending.due);
            if !state.timed {
                let Some(due) = oldest else { return Ok(()) };
                match &mut self.timer {
                    Some(timer) => timer.as_mut().reset(due),
                    None => self.timer = Some(Box::pin(tokio::time::sleep_until(due))),
                }
                state.timed = true;
            }
            let Some(timer) = &mut self.timer else { return Ok(()) };
            if timer.as_mut().poll(cx).is_pending() {
                return Ok(());
            }
            state.timed = false;
            if oldest.is_some_and(|due| due <= Instant::now()) {
                return Err(Broken::Silent);
            }
        }
    }

    fn finish(&mut self, why: Broken) -> End {
        let mut state = self.mux.state();
        state.ended = Some(Ended::Done(why.to_string()));
        state.seal();
        let pending = std::mem::take(&mut state.pending);
        drop(state);
        // Callers may hold on to it for a while; the server need not.
        let _ = rustix::net::shutdown(self.mux.socket.as_ref(), Shutdown::Both);
        let cut_short = !pending.is_empty();
        let lost = why.error().maybe_applied();
        pending.into_iter().for_each(|pending| pending.to.fail(&lost));
        End { why, cut_short }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !matches!(self.mux.state().ended, Some(Ended::Done(_))) {
            self.finish(Broken::Dropped("its runtime has ended"));
        }
    }
}
