//! What a store promises, so that nothing has to be found out by accident.

use core::time::Duration;

use crate::time::ClockKind;
use crate::validity::Drift;

/// What a store promises and refuses. The conformance suite takes its expected answers from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// The store's short name: `sqlite`, `redis`, …
    pub name: &'static str,
    /// Where it is, without secrets, as the user may name it again.
    pub url: alloc::string::String,
    /// The local clock on which belief is measured.
    pub clock: ClockKind,
    /// How much the clock that judges terms may gain on the local one.
    pub drift: Drift,
    /// What can mislead the clock that judges terms, in words.
    pub clock_hazards: &'static [&'static str],
    /// Whether waiters are served in the order of their coming.
    pub fair: bool,
    /// Whether it keeps a queue at all; without one, a claim that must wait is tried again.
    pub queues: bool,
    /// Whether it sees the death of a holder before the term ends.
    pub sees_death: bool,
    /// How places of waiters are kept.
    pub place: PlaceKept,
    /// What happens when a holder claims again.
    pub reentry: Reentry,
    /// Whether shared and permit claims are supported.
    pub modes: Modes,
    /// The shortest and the longest term.
    pub term_bounds: (Duration, Duration),
    /// Whether a claim can be passed to another process by its id.
    pub transferable: bool,
    /// Whether its verbs finish, or wait only on their own threads, wherever they are polled, so
    /// that a caller may poll them on its own thread.
    pub polls_anywhere: bool,
    /// Whether it is reached over connections that may break.
    pub remote: bool,
    /// When tokens might not rise, in words; empty where they always do.
    pub token_hazards: &'static [&'static str],
    /// What else does not hold here, in words.
    pub limits: &'static [&'static str],
}

/// How the place of a waiter is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlaceKept {
    /// The store sees by itself that a waiter has died.
    Watched,
    /// By a word every `every`; without one a place ends after `term`.
    Heartbeat {
        /// How often a waiter says that it lives.
        every: Duration,
        /// How long a place lasts after the last word.
        term: Duration,
    },
}

impl PlaceKept {
    /// The place term a claim should ask for.
    pub const fn term(self) -> Duration {
        match self {
            PlaceKept::Watched => Duration::from_secs(3600 * 24 * 365),
            PlaceKept::Heartbeat { term, .. } => term,
        }
    }
}

/// Who counts re-entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reentry {
    /// The store: also from another process that has the holder's id.
    Store,
    /// The client that holds, within its own process.
    Client,
}

/// Which modes a store supports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Modes {
    /// Shared claims.
    pub shared: bool,
    /// Permits.
    pub permits: bool,
}

impl Modes {
    /// All of them.
    pub const ALL: Modes = Modes { shared: true, permits: true };
}
