//! Sending a script or a command to the node that has its keys, and to the next one if it moved.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, Error, ErrorKind, Moment, Result};

use super::dial::Address;
use super::durable::Durability;
use super::mux::Answered;
use super::node::{Line, Node};
use super::refusal::{self, DOING, Refusal};
use super::resp::{self, Reply};
use super::script::{Script, Usual};
use super::{Inner, Topology};

/// How often a call is sent at most; only what was refused or not sent is sent again.
const SENDS_MAX: u32 = 16;
/// How often a call is sent anew, within that, where a connection ended before it was sent.
const UNSENT_MAX: u32 = 3;
/// The waits while a slot is on its way.
const ON_ITS_WAY: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(250));
/// How long an answer is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// How long the answer to a renewal is waited for.
const RENEWAL_LIMIT: Duration = Duration::from_secs(3);

/// What is sent.
#[derive(Clone, Copy)]
pub(crate) enum What<'c> {
    Script {
        script: &'static Script,
        keys: &'c [&'c [u8]],
        args: &'c [&'c [u8]],
    },
    /// Which others may join, where keys need not have one slot.
    Usual {
        usual: &'static Usual,
        keys: &'c [&'c [u8]],
        same: &'c [&'c [u8]],
        args: &'c [&'c [u8]],
    },
    Command(&'c [&'c [u8]]),
}

/// An answer, and what was true when it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// Before the sending that was answered.
    pub(crate) sent_at: Moment,
    pub(crate) received_at: Moment,
    /// The epoch of the disturbances before the sending.
    pub(crate) epoch: u64,
}

/// How a script is told to the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// By its hash.
    ByHash,
    /// Loaded first, then by its hash.
    Loaded,
    /// With its text: a proxy may have loaded it elsewhere.
    InFull,
}

/// Where a call has got to.
struct Course {
    told: Told,
    asking: Option<Address>,
    sends: u32,
    unsent: u32,
    backoff: Backoff,
}

impl Inner {
    /// Sends to whoever has the slot, until it is answered other than by a redirection.
    pub(super) async fn call(&self, line: Line, slot: u16, what: What<'_>) -> Result<Answer> {
        let mut course = self.course();
        loop {
            let node = self.node_for(slot, &mut course)?;
            if let Some(answer) = self.attempt(&node, line, what, &mut course).await? {
                return Ok(answer);
            }
        }
    }

    /// Sends to this node and no other.
    pub(super) async fn call_at(
        &self,
        node: &Arc<Node>,
        line: Line,
        what: What<'_>,
    ) -> Result<Answer> {
        let mut course = self.course();
        loop {
            if let Some(answer) = self.attempt(node, line, what, &mut course).await? {
                return Ok(answer);
            }
        }
    }

    /// As [`Inner::call`], and what of it has become durable.
    pub(super) async fn call_durably(
        &self,
        slot: u16,
        what: What<'_>,
        durability: Durability,
    ) -> Result<(Answer, super::durable::Reached)> {
        let mut course = self.course();
        loop {
            let asking = course.asking.is_some();
            let node = self.node_for(slot, &mut course)?;
            let mut bytes = Vec::new();
            let unwanted = write(&mut bytes, what, course.told, asking);
            let answered = node.group.send(&self.shared, &node, unwanted, bytes, durability).await;
            let (answer, reached) = match answered {
                Err(error) => {
                    self.unsent(&mut course, error)?;
                    continue;
                }
                Ok(answered) => answered,
            };
            match answer.reply {
                Reply::Error(text) => self.redirect(&node, None, &text, &mut course).await?,
                _ => return Ok((answer, reached)),
            }
        }
    }

    /// Whether it was answered; if not, it is to be sent again.
    async fn attempt(
        &self,
        node: &Arc<Node>,
        line: Line,
        what: What<'_>,
        course: &mut Course,
    ) -> Result<Option<Answer>> {
        let asking = course.asking.take().is_some();
        let mux = node.mux(&self.shared, line).await?;
        let epoch = self.shared.disturbances.epoch();
        let sent_at = self.shared.clock.now();
        let limit = if line == Line::Renewals { RENEWAL_LIMIT } else { LIMIT };
        let answered = if let What::Usual { usual, keys, same, args } = what
            && course.told == Told::ByHash
            && matches!(self.topology, Topology::One(_))
        {
            mux.send_usual(limit, usual, keys, same, args)
        } else if course.told == Told::ByHash && !asking {
            mux.send_one(limit, |out| {
                write(out, what, Told::ByHash, false);
            })
        } else {
            let mut bytes = Vec::new();
            let unwanted = write(&mut bytes, what, course.told, asking);
            let answers = mux.send(unwanted, 1, limit, |out| out.extend_from_slice(&bytes));
            answers.and_then(|mut answers| answers.pop().ok_or_else(no_answer))
        };
        let reply = match answered {
            Ok(answered) => answered.await?,
            Err(error) => {
                self.unsent(course, error)?;
                return Ok(None);
            }
        };
        match reply {
            Reply::Error(text) => {
                self.redirect(node, Some(&mux), &text, course).await?;
                Ok(None)
            }
            reply => {
                let received_at = self.shared.clock.now();
                Ok(Some(Answer { reply, sent_at, received_at, epoch }))
            }
        }
    }

    fn course(&self) -> Course {
        let seed = self.shared.clock.now().as_nanos();
        let backoff = Backoff::new(ON_ITS_WAY.0, ON_ITS_WAY.1, seed);
        Course { told: Told::ByHash, asking: None, sends: 0, unsent: 0, backoff }
    }

    fn node_for(&self, slot: u16, course: &mut Course) -> Result<Arc<Node>> {
        match (&self.topology, &course.asking) {
            (Topology::Cluster(cluster), Some(address)) => Ok(cluster.node_at(address)),
            _ => self.owner(slot),
        }
    }

    /// Nothing was sent: whether it may be, again.
    fn unsent(&self, course: &mut Course, error: Error) -> Result<()> {
        course.unsent += 1;
        let again = error.kind() == ErrorKind::Unreachable
            && error.applied() == leasehold_core::Applied::No
            && course.unsent < UNSENT_MAX;
        if again { Ok(()) } else { Err(error.at(&*self.shared.shown)) }
    }

    /// What to do about a refusal: an error if nothing, else it is to be sent again.
    async fn redirect(
        &self,
        node: &Node,
        mux: Option<&super::mux::Mux>,
        text: &str,
        course: &mut Course,
    ) -> Result<()> {
        let error = || Err(refusal::error(text).at(&*self.shared.shown));
        course.sends += 1;
        if course.sends >= SENDS_MAX {
            return error();
        }
        let here = |host: String| match node.home() {
            Some(home) if host.is_empty() => home.host,
            _ => host,
        };
        match (refusal::refusal(text), &self.topology) {
            (Refusal::NoScript, _) if course.told == Told::ByHash => course.told = Told::Loaded,
            (Refusal::NoScript, _) if course.told == Told::Loaded => course.told = Told::InFull,
            (Refusal::Moved { slot, host, port }, Topology::Cluster(cluster)) => {
                cluster.moved(&self.shared, slot, &Address { host: here(host), port });
            }
            (Refusal::Ask { host, port }, Topology::Cluster(_)) => {
                course.asking = Some(Address { host: here(host), port });
            }
            (Refusal::NotNow, Topology::Cluster(_)) => {
                self.shared.look_again.notify_one();
                self.shared.sleep(course.backoff.next_wait()).await;
            }
            (Refusal::Demoted, _) => {
                match mux {
                    Some(mux) => node.demoted(&self.shared, &mux.identity),
                    None => node.give_up(&self.shared, super::disturbance::Cause::Failover),
                }
                return error();
            }
            _ => return error(),
        }
        Ok(())
    }
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Bug, DOING, "a command was sent that nobody waits for").maybe_applied()
}

/// Writes what is sent; how many answers come before the one that is wanted.
fn write(out: &mut Vec<u8>, what: What<'_>, told: Told, asking: bool) -> usize {
    let mut unwanted = 0;
    let nothing: &[&[u8]] = &[];
    let (script, keys, same, args) = match what {
        What::Script { script, keys, args } => (script, keys, nothing, args),
        What::Usual { usual, keys, same, args } => {
            if told == Told::Loaded {
                resp::words(out, &[b"SCRIPT", b"LOAD", usual.many.text().as_bytes()]);
                unwanted += 1;
            }
            (&usual.one, keys, same, args)
        }
        What::Command(words) => {
            if asking {
                resp::words(out, &[b"ASKING"]);
                unwanted += 1;
            }
            resp::words(out, words);
            return unwanted;
        }
    };
    if told == Told::Loaded {
        resp::words(out, &[b"SCRIPT", b"LOAD", script.text().as_bytes()]);
        unwanted += 1;
    }
    // It counts for the next command only.
    if asking {
        resp::words(out, &[b"ASKING"]);
        unwanted += 1;
    }
    resp::command(out, 3 + keys.len() + same.len() + args.len());
    if told == Told::InFull {
        resp::part(out, b"EVAL");
        resp::part(out, script.text().as_bytes());
    } else {
        resp::part(out, b"EVALSHA");
        resp::part(out, script.hash().as_bytes());
    }
    resp::part(out, keys.len().to_string().as_bytes());
    keys.iter().chain(same).chain(args).for_each(|part| resp::part(out, part));
    unwanted
}

/// Several scripts in one sending, whose answers are told one by one.
pub(super) fn send_all<'c>(
    mux: &super::mux::Mux,
    line: Line,
    calls: impl ExactSizeIterator<Item = What<'c>>,
) -> Result<Vec<Answered>> {
    let limit = if line == Line::Renewals { RENEWAL_LIMIT } else { LIMIT };
    mux.send(0, calls.len(), limit, |out| {
        for what in calls {
            write(out, what, Told::ByHash, false);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    static ONE: Script = Script::new("one", "return 1");

    fn shown(told: Told, asking: bool) -> (usize, String) {
        let what = What::Script { script: &ONE, keys: &[b"k"], args: &[b"a", b"b"] };
        let mut out = Vec::new();
        let unwanted = write(&mut out, what, told, asking);
        let text = String::from_utf8(out).unwrap();
        let words = text.split("\r\n").filter(|line| !line.starts_with(['*', '$']));
        (unwanted, words.collect::<Vec<_>>().join(" ").trim_end().to_owned())
    }

    #[test]
    fn a_script_is_told_by_hash_then_loaded_then_in_full() {
        let hash = ONE.hash();
        assert_eq!(shown(Told::ByHash, false), (0, format!("EVALSHA {hash} 1 k a b")));
        let loaded = format!("SCRIPT LOAD return 1 ASKING EVALSHA {hash} 1 k a b");
        assert_eq!(shown(Told::Loaded, true), (2, loaded));
        assert_eq!(shown(Told::InFull, false), (0, "EVAL return 1 1 k a b".into()));
    }
}
