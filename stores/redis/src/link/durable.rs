//! Scripts whose effect is waited for at replicas or on disk.
//!
//! `WAIT` counts the replicas that have what *this connection* wrote, and holds the connection up
//! meanwhile. So there is one connection a node for it, and what is asked for while a `WAIT` runs
//! goes out together and shares the next one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, oneshot};

use super::call::Answer;
use super::mux::{Answered, Mux};
use super::node::{Line, Node};
use super::refusal::{self, DOING};
use super::resp::{self, Reply};
use super::shared::Shared;

/// How many share one wait.
const GROUP_MAX: usize = 1024;
/// How much longer than what it waits for an answer may take.
const GRACE: Duration = Duration::from_secs(3);

/// How durable the effect of a script is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Durability {
    /// At how many replicas.
    pub(crate) replicas: u32,
    /// And on disk, here and there.
    pub(crate) fsync: bool,
    /// After how long the wait is given up.
    pub(crate) within: Duration,
}

/// How durable it has become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    pub(crate) replicas: u32,
    pub(crate) fsynced: bool,
}

/// What waits to go out together at one node.
#[derive(Debug, Default)]
pub(crate) struct Group {
    waiting: Mutex<VecDeque<Job>>,
    bell: Arc<Notify>,
    started: AtomicBool,
}

#[derive(Debug)]
struct Job {
    unwanted: usize,
    bytes: Vec<u8>,
    durability: Durability,
    to: oneshot::Sender<Result<(Answer, Reached)>>,
}

impl Group {
    /// Sends what is written here, and waits for its answer and its durability.
    pub(crate) async fn send(
        &self,
        shared: &Arc<Shared>,
        node: &Arc<Node>,
        unwanted: usize,
        bytes: Vec<u8>,
        durability: Durability,
    ) -> Result<(Answer, Reached)> {
        let (to, answer) = oneshot::channel();
        self.queue().push_back(Job { unwanted, bytes, durability, to });
        self.bell.notify_one();
        if !self.started.swap(true, Ordering::AcqRel) {
            let bell = Arc::clone(&self.bell);
            shared.at_back(serve(Arc::clone(shared), Arc::downgrade(node), bell));
        }
        answer.await.unwrap_or_else(|_| {
            let detail = "the store was closed, or the node has left the cluster";
            Err(Error::new(ErrorKind::Unreachable, DOING, detail).maybe_applied())
        })
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Job>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those at the front that ask for the same.
    fn next(&self) -> Vec<Job> {
        let mut queue = self.queue();
        // Whoever does not wait any more may have been sent or not: it was not.
        queue.retain(|job| !job.to.is_closed());
        let Some(durability) = queue.front().map(|job| job.durability) else { return Vec::new() };
        let alike = queue.iter().take(GROUP_MAX).take_while(|job| job.durability == durability);
        let count = alike.count();
        queue.drain(..count).collect()
    }
}

async fn serve(shared: Arc<Shared>, node: Weak<Node>, bell: Arc<Notify>) {
    loop {
        bell.notified().await;
        loop {
            let Some(node) = node.upgrade() else { return };
            let jobs = node.group.next();
            if jobs.is_empty() {
                break;
            }
            match node.mux(&shared, Line::Slow).await {
                Ok(mux) => serve_group(&shared, &mux, jobs).await,
                Err(error) => {
                    for job in jobs {
                        let _ = job.to.send(Err(error.clone()));
                    }
                }
            }
        }
    }
}

async fn serve_group(shared: &Shared, mux: &Mux, jobs: Vec<Job>) {
    let Some(Job { durability, .. }) = jobs.first() else { return };
    let durability = *durability;
    let epoch = shared.disturbances.epoch();
    let sent_at = shared.clock.now();
    let sent = send(mux, &jobs, durability);
    let (answers, wait) = match sent {
        Ok(sent) => sent,
        Err(error) => {
            for job in jobs {
                let _ = job.to.send(Err(error.clone()));
            }
            return;
        }
    };
    let mut replies = Vec::with_capacity(answers.len());
    for answer in answers {
        let reply = answer.await;
        replies.push(reply.map(|reply| (reply, shared.clock.now())));
    }
    let reached = wait.await.and_then(|reply| read(&reply));
    for (job, reply) in jobs.into_iter().zip(replies) {
        let answered = reply.and_then(|(reply, received_at)| {
            let answer = Answer { reply, sent_at, received_at, epoch };
            // What was refused did nothing that could be durable.
            if matches!(answer.reply, Reply::Error(_)) {
                return Ok((answer, Reached { replicas: 0, fsynced: false }));
            }
            reached.clone().map(|reached| (answer, reached)).map_err(Error::maybe_applied)
        });
        let _ = job.to.send(answered);
    }
}

fn send(mux: &Mux, jobs: &[Job], durability: Durability) -> Result<(Vec<Answered>, Answered)> {
    let Durability { replicas, fsync, within } = durability;
    let within_ms = within.as_millis().to_string();
    let replicas = replicas.to_string();
    // All in one go: what another sends on this connection must not come between.
    let mut unwanted = Vec::new();
    let mut bytes = Vec::new();
    for job in jobs {
        unwanted.push(job.unwanted);
        bytes.extend_from_slice(&job.bytes);
    }
    if fsync {
        let words = [&b"WAITAOF"[..], b"1", replicas.as_bytes(), within_ms.as_bytes()];
        resp::words(&mut bytes, &words);
    } else {
        resp::words(&mut bytes, &[b"WAIT", replicas.as_bytes(), within_ms.as_bytes()]);
    }
    let all = unwanted.iter().sum::<usize>() + jobs.len() + 1;
    let answers = mux.send(0, all, within + GRACE, |out| out.extend_from_slice(&bytes))?;
    let mut answers = answers.into_iter();
    let mut wanted = Vec::with_capacity(jobs.len());
    for skipped in unwanted {
        wanted.extend(answers.nth(skipped));
    }
    let wait = answers.next().ok_or_else(|| {
        Error::new(ErrorKind::Bug, DOING, "nobody waits for the answer to WAIT").maybe_applied()
    })?;
    Ok((wanted, wait))
}

/// `WAIT`: replicas. `WAITAOF`: whether here, and replicas.
fn read(reply: &Reply) -> Result<Reached> {
    let count = |reply: &Reply| reply.int().map(|n| u32::try_from(n).unwrap_or_default());
    match reply {
        Reply::Error(text) => Err(refusal::error(text)),
        Reply::Array(both) => match both.as_slice() {
            [here, there] => Ok(Reached { replicas: count(there)?, fsynced: count(here)? > 0 }),
            _ => Err(Error::new(ErrorKind::Corrupt, DOING, "WAITAOF answered something odd")),
        },
        reply => Ok(Reached { replicas: count(reply)?, fsynced: false }),
    }
}
