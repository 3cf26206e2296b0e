//! Answers of the server, as JSON, in leasehold's types.

use std::time::Duration;

use leasehold_core::{
    Admission, Busy, ClaimId, Ended, Error, ErrorKind, Grant, Kind, Left, Mode, Occupant, Previous,
    Pushed, PushedEnd, Renewed, Result, Slots, Ticket, Token, Waiting, Written,
};
use serde_json::Value;

use crate::error::{DOING, strange};

/// How often at most a waiter looks by itself.
const RECHECK: Duration = Duration::from_secs(3);
/// The later in line, the later the look when a term runs out: one at a time.
const STAGGER: Duration = Duration::from_millis(20);

/// A JSON object that is read.
#[derive(Clone, Copy)]
pub(crate) struct Read<'v>(pub(crate) &'v Value);

impl<'v> Read<'v> {
    pub(crate) fn is(self) -> &'v str {
        self.maybe_text("is").unwrap_or("nothing")
    }

    pub(crate) fn maybe_text(self, key: &str) -> Option<&'v str> {
        self.0.get(key).and_then(Value::as_str)
    }

    pub(crate) fn text(self, key: &'static str) -> Result<&'v str> {
        self.maybe_text(key).ok_or_else(|| strange(key))
    }

    /// A span that may be missing; one that is over is zero.
    pub(crate) fn maybe_span(self, key: &str) -> Option<Duration> {
        let us = self.0.get(key).and_then(Value::as_i64)?;
        Some(Duration::from_micros(u64::try_from(us).unwrap_or(0)))
    }

    pub(crate) fn span(self, key: &'static str) -> Result<Duration> {
        self.maybe_span(key).ok_or_else(|| strange(key))
    }

    pub(crate) fn natural(self, key: &'static str) -> Result<u64> {
        self.0.get(key).and_then(Value::as_u64).ok_or_else(|| strange(key))
    }

    pub(crate) fn count(self, key: &'static str) -> Result<u32> {
        u32::try_from(self.natural(key)?).map_err(|_| strange(key))
    }

    pub(crate) fn maybe_token(self, key: &str) -> Option<Token> {
        self.0.get(key).and_then(Value::as_u64).and_then(Token::new)
    }

    pub(crate) fn token(self, key: &'static str) -> Result<Token> {
        self.maybe_token(key).ok_or_else(|| strange(key))
    }

    pub(crate) fn tokens(self, key: &'static str) -> Result<Vec<Token>> {
        let all = self.0.get(key).and_then(Value::as_array).ok_or_else(|| strange(key))?;
        let token = |v: &Value| v.as_u64().and_then(Token::new).ok_or_else(|| strange(key));
        let mut tokens = all.iter().map(token).collect::<Result<Vec<Token>>>()?;
        tokens.dedup();
        Ok(tokens)
    }

    pub(crate) fn slots(self, key: &'static str) -> Result<Slots> {
        let all = self.0.get(key).and_then(Value::as_array).ok_or_else(|| strange(key))?;
        let slot = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let slots = all.iter().map(slot).collect::<Option<Vec<u32>>>();
        let slots = slots.ok_or_else(|| strange(key))?;
        Ok(Slots::new(slots))
    }

    pub(crate) fn ended(self, key: &'static str) -> Result<Ended> {
        Ended::from_word(self.text(key)?).ok_or_else(|| strange(key))
    }

    fn previous(self, key: &'static str) -> Result<Previous> {
        match self.text(key)? {
            "first" => Ok(Previous::First),
            word => Ended::from_word(word).map(Previous::Ended).ok_or_else(|| strange(key)),
        }
    }

    fn occupant(self) -> Option<Occupant> {
        let label = self.maybe_text("label")?.to_owned();
        Some(Occupant {
            label,
            held_for: self.maybe_span("held_for"),
            token: self.maybe_token("token"),
        })
    }

    fn grant(self, claim: ClaimId) -> Result<Grant<Duration>> {
        Ok(Grant {
            claim,
            token: self.token("token")?,
            until: self.span("left")?,
            slots: self.slots("slots")?,
            previous: self.previous("previous")?,
        })
    }

    fn busy(self) -> Busy {
        Busy { holder: self.occupant(), free_in: self.maybe_span("free_in") }
    }

    fn waiting(self) -> Result<Waiting> {
        let ticket = Ticket(self.natural("ticket")?);
        let ahead = self.count("ahead")?;
        let position = ahead.saturating_sub(1).min(100);
        let jitter = Duration::from_millis(ticket.0.wrapping_mul(37) % 1000);
        let free_in = self.maybe_span("free_in").unwrap_or(Duration::from_secs(1));
        let recheck_in = (free_in + STAGGER * position).min(RECHECK + jitter);
        Ok(Waiting {
            ticket,
            ahead: Some(ahead),
            recheck_in: recheck_in + Duration::from_millis(1),
            holder: self.occupant(),
        })
    }
}

/// The answer to an enter.
pub(crate) fn admission(claim: ClaimId, mode: Mode, answer: &Value) -> Result<Admission<Duration>> {
    let read = Read(answer);
    match read.is() {
        "granted" => Ok(Admission::Granted(read.grant(claim)?)),
        "waiting" => Ok(Admission::Waiting(read.waiting()?)),
        "busy" => Ok(Admission::Busy(read.busy())),
        "gone" => Ok(Admission::Gone(read.ended("how")?)),
        "refused" => Err(refusal(read, mode)?),
        _ => Err(strange("the answer to an enter")),
    }
}

fn refusal(read: Read<'_>, mode: Mode) -> Result<Error> {
    let refuse = |kind, detail: &str| Ok(Error::new(kind, DOING, detail));
    match read.text("why")? {
        "kind" => {
            let there = match read.count("limit")? {
                0 => Kind::Lock,
                limit => Kind::Permits { limit },
            };
            refuse(ErrorKind::Usage, &other_kind(there, mode.kind()))
        }
        "upgrade" => refuse(
            ErrorKind::Usage,
            "this holder has a shared grant, and a shared grant is not upgraded",
        ),
        "full" => refuse(ErrorKind::Unavailable, "its queue is full"),
        _ => Err(strange("why it is refused")),
    }
}

fn other_kind(there: Kind, asked: Kind) -> String {
    match (there, asked) {
        (Kind::Permits { limit }, Kind::Permits { limit: other }) => {
            format!("it has {limit} permits while claims on it live, not {other}")
        }
        (Kind::Permits { limit }, Kind::Lock) => {
            format!("it is a semaphore of {limit} permits while claims on it live, not a lock")
        }
        (Kind::Lock, _) => String::from("it is a lock while claims on it live, not a semaphore"),
    }
}

/// The answer to a renewal.
pub(crate) fn renewed(claim: ClaimId, answer: &Value) -> Result<Renewed<Duration>> {
    let read = Read(answer);
    match read.is() {
        "alive" => Ok(Renewed::Alive { until: read.span("left")? }),
        "granted" => Ok(Renewed::Granted(read.grant(claim)?)),
        "waiting" => Ok(Renewed::Waiting(read.waiting()?)),
        "gone" => Ok(Renewed::Gone(read.ended("how")?)),
        _ => Err(strange("the answer to a renewal")),
    }
}

/// The answer to a leave.
pub(crate) fn left(answer: &Value) -> Result<Left> {
    let read = Read(answer);
    match read.is() {
        "released" => Ok(Left::Released),
        "gone" => Ok(Left::Gone(read.ended("how")?)),
        _ => Err(strange("the answer to a leave")),
    }
}

/// The answer to a write.
pub(crate) fn written(answer: &Value) -> Result<Written> {
    let read = Read(answer);
    match read.is() {
        "stored" => Ok(Written::Stored),
        "gone" => Ok(Written::Gone(read.ended("how")?)),
        _ => Err(strange("the answer to a write")),
    }
}

/// A word for a waiter: a grant, or the claim that should look.
pub(crate) fn pushed(word: &Value) -> Option<Result<Pushed, ClaimId>> {
    let read = Read(word);
    let claim: ClaimId = read.maybe_text("claim")?.replace('-', "").parse().ok()?;
    if word.get("ticket").is_none() {
        return Some(Err(claim));
    }
    let grant = || -> Result<Pushed> {
        let grant = Grant {
            claim,
            token: read.token("token")?,
            until: PushedEnd::FirstTerm(read.span("term")?),
            slots: read.slots("slots")?,
            previous: read.previous("previous")?,
        };
        Ok(Pushed { grant, ticket: Ticket(read.natural("ticket")?) })
    };
    grant().ok().map(Ok)
}
