//! What a script told, read into answers.

use std::time::Duration;

use leasehold_core::{
    Busy, ClaimId, Ended, Error, ErrorKind, Grant, Moment, Occupant, Previous, ResourceName,
    Result, Slots, Ticket, Token, Waiting, shown,
};

use crate::config::Layout;
use crate::link::{Answer, Reply};

/// What is being done, in the words that stand first in an error; the verb puts its own in.
pub(crate) const DOING: &str = "use the store";
/// How often at most a waiter looks by itself.
const RECHECK: Duration = Duration::from_secs(3);
/// The later in line, the later the look when a term runs out.
const STAGGER: Duration = Duration::from_millis(20);
/// How often the first in line looks at a foreign holder that tells nobody when it lets go.
const POLL: Duration = Duration::from_millis(50);

/// An answer, item by item.
#[derive(Debug)]
pub(crate) struct Told {
    /// When the request was sent that was answered.
    pub(crate) sent: Moment,
    /// When the answer came.
    pub(crate) received: Moment,
    /// The disturbances that the link had seen by then.
    pub(crate) epoch: u64,
    /// The server's time.
    pub(crate) server_us: u64,
    items: std::vec::IntoIter<Reply>,
}

impl Told {
    pub(crate) fn read(answer: Answer) -> Result<Told> {
        let Answer { reply, sent_at, received_at, epoch } = answer;
        let items = reply.into_array()?.into_iter();
        let mut told = Told { sent: sent_at, received: received_at, epoch, server_us: 0, items };
        told.server_us = told.number()?;
        Ok(told)
    }

    /// One of several answers within this one.
    pub(crate) fn part(&self, reply: Reply) -> Result<Told> {
        let items = reply.into_array()?.into_iter();
        let Told { sent, received, epoch, server_us, .. } = *self;
        Ok(Told { sent, received, epoch, server_us, items })
    }

    pub(crate) fn next(&mut self) -> Option<Reply> {
        self.items.next()
    }

    pub(crate) fn item(&mut self) -> Result<Reply> {
        self.items.next().ok_or_else(|| corrupt("an answer of its scripts is too short"))
    }

    pub(crate) fn integer(&mut self) -> Result<i64> {
        self.item()?.int()
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        u64::try_from(self.integer()?).map_err(|_| corrupt("a number is below zero"))
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        let item = self.item()?;
        Ok(String::from_utf8_lossy(item.bytes()?).into_owned())
    }

    pub(crate) fn span(&mut self) -> Result<Duration> {
        Ok(Duration::from_micros(self.number()?))
    }

    /// A span, or nothing where it is below zero.
    pub(crate) fn maybe_span(&mut self) -> Result<Option<Duration>> {
        Ok(u64::try_from(self.integer()?).ok().map(Duration::from_micros))
    }

    pub(crate) fn ended(&mut self) -> Result<Ended> {
        let text = self.text()?;
        ended_of(&text)
    }

    /// The rest of a grant, after its word.
    pub(crate) fn grant(&mut self, claim: ClaimId) -> Result<Grant<Duration>> {
        let token = token_of(self.number()?)?;
        let until = self.span()?;
        let slots = slots_of(&self.text()?)?;
        let previous = previous_of(&self.text()?)?;
        Ok(Grant { claim, token, until, slots, previous })
    }

    /// The rest of a waiting answer, and whether this waiter is to listen for a foreign holder.
    pub(crate) fn waiting(&mut self, layout: Layout) -> Result<(Waiting, bool)> {
        let ticket = Ticket(self.number()?);
        let ahead = u32::try_from(self.number()?).ok();
        let left = self.maybe_span()?;
        let rank = self.number()?;
        let listens = self.number()? == 1;
        let holder = self.occupant()?;
        let jitter = Duration::from_millis(ticket.0.wrapping_mul(37) % 1000);
        let position = u32::try_from(rank.min(100)).unwrap_or_default();
        let free_in = left.unwrap_or(Duration::from_secs(1)) + STAGGER * position;
        let mut recheck_in = free_in.min(RECHECK + jitter) + Duration::from_millis(1);
        if listens && layout == Layout::Plain {
            recheck_in = recheck_in.min(POLL);
        }
        Ok((Waiting { ticket, ahead, recheck_in, holder }, listens))
    }

    /// The rest of a busy answer.
    pub(crate) fn busy(&mut self) -> Result<Busy> {
        let free_in = self.maybe_span()?;
        let holder = self.occupant()?;
        Ok(Busy { holder, free_in })
    }

    fn occupant(&mut self) -> Result<Option<Occupant>> {
        let is_known = self.number()? == 1;
        let label = self.text()?;
        let held_for = self.maybe_span()?;
        let token = Token::new(self.number()?);
        let label = shown(&label, 200).into_owned();
        Ok(is_known.then_some(Occupant { label, held_for, token }))
    }

    /// Why the verb was refused.
    pub(crate) fn refusal(&mut self, word: &str, name: &ResourceName) -> Error {
        let detail = self.items.next();
        let detail = detail.as_ref().and_then(|reply| reply.str().ok()).unwrap_or_default();
        refused(word, detail, self.items.next().and_then(|limit| limit.int().ok())).on(name)
    }
}

fn refused(word: &str, detail: &str, limit: Option<i64>) -> Error {
    let usage = |text: String| Error::new(ErrorKind::Usage, DOING, text);
    match (word, detail) {
        ("alien", "string") => usage(
            "the key of that name holds a string: a lock of a `SET NX` client, or a value".into(),
        )
        .advise("use `?layout=plain` with such clients, or another name"),
        ("alien", "hash") => {
            usage("the key of that name holds a hash: a lock of Redisson's, or a value".into())
                .advise("use `?layout=redisson` with Redisson, or another name")
        }
        ("alien", kind) => {
            usage(format!("the key of that name holds a {} that is no lock", shown(kind, 20)))
                .advise("use another name, or another database")
        }
        ("layout", there) => {
            let there = if there == "r" { "redisson" } else { "plain" };
            usage(format!("claims of the layout `{there}` live on it"))
                .advise("let all its users name one layout")
        }
        ("kind", "P") => usage(format!(
            "it is a semaphore of {} permits while claims on it live",
            limit.unwrap_or_default()
        )),
        ("kind", _) => usage("it is a lock while claims on it live, not a semaphore".into()),
        ("upgrade", _) => {
            usage("this holder has a shared grant, and a shared grant is not upgraded".into())
        }
        ("full", _) => Error::new(ErrorKind::Unavailable, DOING, "its queue is full"),
        ("exhausted", _) => Error::new(ErrorKind::Unavailable, DOING, "tokens are used up"),
        ("version", _) => Error::new(
            ErrorKind::Version,
            DOING,
            "its state was written by a version of leasehold that this one does not know",
        ),
        _ => corrupt("an answer of its scripts is not one that they give"),
    }
}

pub(crate) fn ended_of(text: &str) -> Result<Ended> {
    match text {
        "R" => Ok(Ended::Released),
        "E" => Ok(Ended::Expired),
        "B" => Ok(Ended::Broken),
        "V" => Ok(Ended::Evicted),
        "U" => Ok(Ended::Unknown),
        _ => Err(corrupt("an end is not one that leasehold writes")),
    }
}

pub(crate) fn previous_of(text: &str) -> Result<Previous> {
    if text == "F" { Ok(Previous::First) } else { ended_of(text).map(Previous::Ended) }
}

pub(crate) fn token_of(number: u64) -> Result<Token> {
    Token::new(number).ok_or_else(|| corrupt("a token is out of bounds"))
}

pub(crate) fn slots_of(text: &str) -> Result<Slots> {
    if text == "-" {
        return Ok(Slots::default());
    }
    let slots: Option<Vec<u32>> = text.split(',').map(|n| n.parse().ok()).collect();
    slots.map(Slots::new).ok_or_else(|| corrupt("slots are not numbers"))
}

pub(crate) fn corrupt(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, DOING, what)
}
