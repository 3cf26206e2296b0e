//! Checkers of recorded histories: one promise a file, named after it.
//!
//! Each takes a whole [`History`] and says what first broke its promise. Each is tested with a bad
//! history that it must convict and a good one that it must pass.

use std::fmt;

use crate::history::History;

pub mod belief_ends_first;
pub mod death_is_final;
pub mod exclusion;
pub mod fence_holds;
pub mod fifo;
mod grants;
pub mod no_ghosts;
pub mod permits_fit;
pub mod places_are_leased;
pub mod progress;
pub mod reconnect_wakes;
pub mod tokens_rise;

/// A promise that a history breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which promise.
    pub promise: &'static str,
    /// The event that breaks it, by its index.
    pub event: usize,
    /// How.
    pub how: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken at event {}: {}", self.promise, self.event, self.how)
    }
}

/// What a checker says.
pub type Verdict = Result<(), Violation>;

/// A checker.
pub type Checker = fn(&History) -> Verdict;

/// All of them, by name.
pub const ALL: [(&str, Checker); 11] = [
    ("exclusion", exclusion::check),
    ("permits_fit", permits_fit::check),
    ("tokens_rise", tokens_rise::check),
    ("belief_ends_first", belief_ends_first::check),
    ("death_is_final", death_is_final::check),
    ("no_ghosts", no_ghosts::check),
    ("fence_holds", fence_holds::check),
    ("fifo", fifo::check),
    ("places_are_leased", places_are_leased::check),
    ("reconnect_wakes", reconnect_wakes::check),
    ("progress", progress::check),
];

/// Runs all checkers; the first broken promise, in the order of [`ALL`].
///
/// # Errors
///
/// The violation.
pub fn check_all(history: &History) -> Verdict {
    ALL.iter().try_for_each(|(_, check)| check(history))
}

pub(crate) fn broken(promise: &'static str, event: usize, how: String) -> Verdict {
    Err(Violation { promise, event, how })
}

#[cfg(test)]
pub(crate) mod testing;
