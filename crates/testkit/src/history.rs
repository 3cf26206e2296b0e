//! Recorded histories: what clients asked, heard and believed, what the store decided, and what
//! reached the protected thing, in one order.

use std::fmt;
use std::time::Duration;

use leasehold_core::{
    Access, ClaimId, Ended, HolderId, Mode, Moment, ResourceName, Slots, Ticket, Token,
};

/// What happened in one run, in the order of one observer's clock.
///
/// A simulation records all of it. A run against real servers records what clients can see
/// ([`What::Sent`], [`What::Returned`], [`What::Believes`], [`What::Ceases`], [`What::Touched`]) and,
/// at the end, what an inspection still finds ([`What::Remains`]); checkers that need the store's
/// own decisions then have less to say.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The events, in order.
    pub events: Vec<Event>,
}

impl History {
    /// Adds an event.
    pub fn push(&mut self, at: Moment, who: Who, on: Option<(&ResourceName, ClaimId)>, what: What) {
        let (resource, claim) = match on {
            Some((resource, claim)) => (Some(resource.clone()), Some(claim)),
            None => (None, None),
        };
        self.events.push(Event { at, who, resource, claim, what });
    }

    /// Puts events that several observers of one clock recorded into one order.
    pub fn merged(parts: impl IntoIterator<Item = History>) -> History {
        let mut events: Vec<Event> = parts.into_iter().flat_map(|part| part.events).collect();
        events.sort_by_key(|event| event.at);
        History { events }
    }

    /// The same number for the same events.
    pub fn digest(&self) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        self.events.hash(&mut hasher);
        hasher.finish()
    }
}

/// FNV-1a: the same on every machine and in every build, unlike the standard hasher's promise.
struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Event {
    /// When, on the observer's clock.
    pub at: Moment,
    /// Who did or saw it.
    pub who: Who,
    /// On what.
    pub resource: Option<ResourceName>,
    /// Concerning which claim.
    pub claim: Option<ClaimId>,
    /// What.
    pub what: What,
}

/// Who did or saw something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Who {
    /// The store.
    Store,
    /// This client.
    Client(u32),
    /// The protected thing.
    Thing,
    /// Whoever hurts and heals.
    Fate,
}

/// The verb of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verb {
    /// `enter`.
    Enter,
    /// `renew`, of a grant or a place.
    Renew,
    /// `leave`.
    Leave,
}

/// The answer to a call, as far as checkers need it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// Granted, with this token.
    Granted(Token),
    /// Still granted.
    Alive,
    /// Queued.
    Waiting(Ticket),
    /// Not admitted, not queued.
    Busy,
    /// The claim was ended.
    Released,
    /// The claim had ended.
    Gone(Ended),
    /// None, or an unclear one.
    Unknown,
}

/// What an access to the protected thing does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Raises the mark before anything else.
    Enter,
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Why belief ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cease {
    /// A release was sent.
    Release,
    /// Its deadline came.
    Deadline,
    /// The client was told that it is lost.
    Told,
    /// The client died.
    Death,
}

/// What happened. `judged` is the moment on the clock that judges terms.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// A client began to want the resource; the claim is the first it asks under.
    Wants {
        /// Numbers the wish, over all clients.
        wish: u64,
    },
    /// The wish was granted.
    Got {
        /// Which.
        wish: u64,
    },
    /// The client withdrew the wish, was refused, ran out of patience, or died.
    GaveUp {
        /// Which.
        wish: u64,
    },
    /// A call was sent.
    Sent {
        /// Numbers the call, over all clients.
        call: u64,
        /// Which verb.
        verb: Verb,
    },
    /// A call was answered.
    Returned {
        /// Which.
        call: u64,
        /// How.
        answer: Answer,
    },
    /// The store decided a verb of this claim's own client.
    Heard {
        /// When.
        judged: Moment,
    },
    /// The store queued the claim.
    Queued {
        /// Its ticket.
        ticket: Ticket,
        /// How long its place lasts unheard.
        place: Duration,
        /// When.
        judged: Moment,
    },
    /// The store granted the claim.
    Admitted {
        /// To whom.
        holder: HolderId,
        /// How.
        mode: Mode,
        /// With which token.
        token: Token,
        /// Which slots.
        slots: Slots,
        /// It entered a grant that its holder already had.
        reenters: bool,
        /// When its term ends.
        until: Moment,
        /// When.
        judged: Moment,
    },
    /// The store moved the end of the claim's term.
    Extended {
        /// To when.
        until: Moment,
        /// When.
        judged: Moment,
    },
    /// The store decided a leave of this claim, whether it found it or not.
    LeaveDecided {
        /// For how long the claim must not come back.
        term: Duration,
        /// When.
        judged: Moment,
    },
    /// The claim ended at the store.
    Ended {
        /// How.
        how: Ended,
        /// Until when the store must not take it again; ids are used once.
        remembered: Moment,
    },
    /// A client believes to hold from here on.
    Believes {
        /// As whom.
        holder: HolderId,
        /// How.
        mode: Mode,
        /// With which token.
        token: Token,
        /// Which slots.
        slots: Slots,
    },
    /// Belief ended.
    Ceases {
        /// Why.
        why: Cease,
    },
    /// An access reached the protected thing.
    Touched {
        /// How.
        access: Access,
        /// Under which token.
        token: Token,
        /// Which slot, for permits.
        slot: Option<u32>,
        /// To do what.
        op: Op,
        /// Whether it was let through.
        accepted: bool,
    },
    /// The client's connection was cut and is there again.
    Reconnected,
    /// The client does nothing from here on, until [`What::Resumed`].
    Paused,
    /// The client goes on.
    Resumed,
    /// An assumption of law 2 was broken (a clock gained more than the drift allows): beliefs of
    /// this client, or of all if it is the store's clock, may for a while outlast their terms.
    Upset {
        /// For how long.
        window: Duration,
    },
    /// The judging clock went back: what was to be remembered until some moment of it may have been
    /// forgotten when it first showed that moment.
    WentBack {
        /// How far.
        by: Duration,
    },
    /// From here on nothing is hurt.
    Healed,
    /// At the end, when everything should have gone, this claim still stood at the store.
    Remains,
}

impl fmt::Display for Event {
    /// One line in fixed columns: time in milliseconds, who, the claim's last digits, resource,
    /// what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.as_nanos() / 1000;
        let who = match self.who {
            Who::Store => String::from("store"),
            Who::Client(n) => format!("client {n}"),
            Who::Thing => String::from("thing"),
            Who::Fate => String::from("fate"),
        };
        let claim = self.claim.map(|c| format!("{:06x}", c.bits() & 0xff_ffff)).unwrap_or_default();
        let resource = self.resource.as_ref().map_or("", |r| r.as_str());
        let (millis, rest) = (micros / 1000, micros % 1000);
        write!(f, "{millis:>8}.{rest:03} {who:<9} {claim:<6} {resource:<8} {:?}", self.what)
    }
}
