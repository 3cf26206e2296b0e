//! What a store answers. Contention is an answer, not an error; so is "unknown".

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::claim::{ClaimId, Holder, Kind, Life, Mode, Ticket};
use crate::error::Error;
use crate::name::ResourceName;
use crate::time::Moment;
use crate::token::Token;

/// An admitted claim.
///
/// `U` is how its end is told: a [`Moment`] of belief on the local clock (what a store hands out),
/// or the [`Duration`] the judging clock leaves (what [`Model`](crate::Model) and servers say).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant<U = Moment> {
    /// Whose.
    pub claim: ClaimId,
    /// Its fencing token.
    pub token: Token,
    /// When it ends.
    pub until: U,
    /// Which permit slots it has; empty for locks.
    pub slots: Slots,
    /// How the grant before it ended.
    pub previous: Previous,
}

impl<U> Grant<U> {
    /// The same grant with its end told otherwise.
    pub fn map_until<V>(self, f: impl FnOnce(U) -> V) -> Grant<V> {
        let Grant { claim, token, until, slots, previous } = self;
        Grant { claim, token, until: f(until), slots, previous }
    }
}

/// The numbers of permit slots, from 0, ascending.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slots(Option<Arc<[u32]>>);

impl Slots {
    /// These slots.
    pub fn new(mut numbers: Vec<u32>) -> Slots {
        numbers.sort_unstable();
        if numbers.is_empty() { Slots(None) } else { Slots(Some(numbers.into())) }
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[u32] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// Whether there are none, as for locks.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for Slots {
    /// Comma-separated, as in `0,3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, slot) in self.as_slice().iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{slot}")?;
        }
        Ok(())
    }
}

/// How a grant or a place ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// Its holder released it, or its waiter withdrew.
    Released,
    /// Its term ran out.
    Expired,
    /// Its process died and the store saw it.
    Died,
    /// An operator broke it.
    Broken,
    /// The store dropped it to make room.
    Evicted,
    /// The store lost it when another member took over.
    Failover,
    /// The clock that judges terms stepped, and the term with it.
    Clock,
    /// The store does not know: it has no such claim and no memory of one.
    Unknown,
}

impl Ended {
    /// Whether the protected thing was left as its holder meant to leave it, as far as one can
    /// know: only after a release.
    pub const fn is_clean(self) -> bool {
        matches!(self, Ended::Released)
    }

    /// One word for people, programs and the store's rows.
    pub const fn word(self) -> &'static str {
        match self {
            Ended::Released => "released",
            Ended::Expired => "expired",
            Ended::Died => "died",
            Ended::Broken => "broken",
            Ended::Evicted => "evicted",
            Ended::Failover => "failover",
            Ended::Clock => "clock",
            Ended::Unknown => "unknown",
        }
    }

    /// Reads what [`Ended::word`] wrote.
    pub fn from_word(word: &str) -> Option<Ended> {
        use Ended::{Broken, Clock, Died, Evicted, Expired, Failover, Released, Unknown};
        let all = [Released, Expired, Died, Broken, Evicted, Failover, Clock, Unknown];
        all.into_iter().find(|e| e.word() == word)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// How the grant before this one ended, so that a holder can check the state it inherits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Previous {
    /// There was none that the store remembers.
    First,
    /// The last one to end, and how.
    Ended(Ended),
}

impl Previous {
    /// One word: `first`, or as [`Ended::word`].
    pub const fn word(self) -> &'static str {
        match self {
            Previous::First => "first",
            Previous::Ended(how) => how.word(),
        }
    }
}

impl fmt::Display for Previous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// The answer to [`Store::enter`](crate::Store::enter).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission<U = Moment> {
    /// Admitted.
    Granted(Grant<U>),
    /// Queued.
    Waiting(Waiting),
    /// Not admitted and not queued.
    Busy(Busy),
    /// This claim has ended and cannot be entered again; the caller goes on under a new id.
    Gone(Ended),
}

impl<U> Admission<U> {
    /// The same answer with the end of a grant told otherwise.
    pub fn map_until<V>(self, f: impl FnOnce(U) -> V) -> Admission<V> {
        match self {
            Admission::Granted(grant) => Admission::Granted(grant.map_until(f)),
            Admission::Waiting(waiting) => Admission::Waiting(waiting),
            Admission::Busy(busy) => Admission::Busy(busy),
            Admission::Gone(why) => Admission::Gone(why),
        }
    }
}

/// A claim stands in the store's queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// New each time the claim is queued.
    pub ticket: Ticket,
    /// How many claims stand before it, if the store counts them.
    pub ahead: Option<u32>,
    /// When to look again if nothing is heard: the holder's remaining term, or sooner.
    pub recheck_in: Duration,
    /// Who holds what is waited for, if the store says.
    pub holder: Option<Occupant>,
}

/// A claim was refused because others hold the resource.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Busy {
    /// Who holds it, if the store says.
    pub holder: Option<Occupant>,
    /// When it may become free without a release, if known.
    pub free_in: Option<Duration>,
}

/// A holder as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Occupant {
    /// The holder's label.
    pub label: String,
    /// For how long it has held, if known.
    pub held_for: Option<Duration>,
    /// Its token, if known.
    pub token: Option<Token>,
}

/// The answer to one claim of [`Store::renew`](crate::Store::renew).
#[derive(Debug, Clone)]
pub enum Renewed<U = Moment> {
    /// Still granted, until then.
    Alive {
        /// The new end.
        until: U,
    },
    /// Still queued.
    Waiting(Waiting),
    /// It was queued and has been granted since.
    Granted(Grant<U>),
    /// It has ended; a renewal never revives or creates.
    Gone(Ended),
    /// No clear answer; whatever was believed is believed no longer than before.
    Unknown(Error),
}

impl<U> Renewed<U> {
    /// The same answer with the end of a grant told otherwise.
    pub fn map_until<V>(self, f: impl FnOnce(U) -> V) -> Renewed<V> {
        match self {
            Renewed::Alive { until } => Renewed::Alive { until: f(until) },
            Renewed::Granted(grant) => Renewed::Granted(grant.map_until(f)),
            Renewed::Waiting(waiting) => Renewed::Waiting(waiting),
            Renewed::Gone(why) => Renewed::Gone(why),
            Renewed::Unknown(error) => Renewed::Unknown(error),
        }
    }
}

/// The answer to [`Store::leave`](crate::Store::leave).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It was granted or queued, and this call ended it.
    Released,
    /// It had ended before.
    Gone(Ended),
}

/// Where a watcher has got to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Cursor(pub u64);

/// The answer to [`Store::changed`](crate::Store::changed). It may lie, and it may sleep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hint {
    /// Something may have changed, or the time is up: look.
    Moved(Cursor),
    /// A release granted this waiting claim.
    Granted(Pushed),
}

/// A grant that another's release made and that was sent to the waiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pushed {
    /// The grant; its `until` says how its end is told.
    pub grant: Grant<PushedEnd>,
    /// The ticket under which the claim was queued when it was granted.
    pub ticket: Ticket,
}

/// How long a pushed grant lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushedEnd {
    /// This first term, counted by the waiter from the send time of its latest call answered
    /// waiting with this ticket.
    FirstTerm(Duration),
    /// Until this moment: judge and waiter read one clock.
    At(Moment),
}

/// What stands on a resource, for people and tests: [`Store::inspect`](crate::Store::inspect).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Queue {
    /// The kind, while any claim lives.
    pub kind: Option<Kind>,
    /// Holders first, then waiters, each in order.
    pub entries: Vec<QueueEntry>,
    /// The newest token, if the store knows it.
    pub last_token: Option<Token>,
    /// How the last grant to end has ended.
    pub last_end: Option<Ended>,
    /// How long ago that was.
    pub last_end_ago: Option<Duration>,
}

impl Queue {
    /// The granted claims.
    pub fn holders(&self) -> impl Iterator<Item = &QueueEntry> {
        self.entries.iter().filter(|e| matches!(e.state, QueueState::Granted { .. }))
    }

    /// The waiting claims, in order.
    pub fn waiters(&self) -> impl Iterator<Item = &QueueEntry> {
        self.entries.iter().filter(|e| matches!(e.state, QueueState::Waiting { .. }))
    }
}

/// One claim in a [`Queue`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueEntry {
    /// Its id.
    pub claim: ClaimId,
    /// Who.
    pub holder: Holder,
    /// How.
    pub mode: Mode,
    /// What else ends it.
    pub life: Life,
    /// How long ago it entered.
    pub entered_ago: Duration,
    /// Whether it holds or waits.
    pub state: QueueState,
}

/// Whether a claim holds or waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QueueState {
    /// It holds.
    Granted {
        /// Its token.
        token: Token,
        /// Its slots.
        slots: Slots,
        /// How long ago it was admitted.
        held_for: Duration,
        /// What the judging clock leaves of its term.
        left: Duration,
        /// An operator broke it: it will be told at its next renewal.
        broken: bool,
    },
    /// It waits.
    Waiting {
        /// Its ticket.
        ticket: Ticket,
    },
}

/// The answer to [`Store::write`](crate::Store::write).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Stored.
    Stored,
    /// The claim is not granted any more; nothing was stored.
    Gone(Ended),
}

/// A small record kept with a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What was written.
    pub value: Vec<u8>,
    /// Under which grant.
    pub token: Token,
    /// How much longer it is kept.
    pub kept_for: Duration,
}

impl Record {
    /// The largest value, in bytes.
    pub const VALUE_MAX: usize = 64 * 1024;
}

/// The answer to [`Store::break_`](crate::Store::break_).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// These grants were marked (or freed, when asked to do it at once).
    Marked(Vec<Token>),
    /// Nobody held it, or nobody with the expected token; nothing was done.
    Nothing {
        /// The tokens of those who do hold it.
        held: Vec<Token>,
    },
}

/// A part of a long listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// Only names that begin with this.
    pub prefix: String,
    /// Only names after this one, in byte order.
    pub after: Option<ResourceName>,
    /// At most this many; a store may give fewer, and gives none only at the end.
    pub limit: u32,
}

impl Default for Page {
    /// The first hundred of all names.
    fn default() -> Page {
        Page { prefix: String::new(), after: None, limit: 100 }
    }
}

/// The answer to [`Store::clean`](crate::Store::clean).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cleaned {
    /// Names that were cleaned, or would be.
    pub names: Vec<ResourceName>,
    /// Where to go on, unless this was the end.
    pub next: Option<ResourceName>,
}
