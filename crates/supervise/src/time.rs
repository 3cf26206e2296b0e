//! Clocks and deadlines, and the arithmetic that says when to ask and when to insist. Pure.

use std::time::Duration;

/// The clock on which deadlines are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockKind {
    /// `CLOCK_MONOTONIC`: stands still while the machine sleeps (the embedded store).
    Monotonic,
    /// `CLOCK_BOOTTIME`: goes on while the machine sleeps (everything on another machine).
    Boot,
}

impl ClockKind {
    /// What this clock reads now in this process, in nanoseconds.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        crate::sys::clock_now_ns(self)
    }
}

/// The moment at which the right to run ends, on a named clock.
///
/// The number is what the kernel's clock reads *in this process*: a caller whose own clock takes
/// a time namespace's offset away adds it back with [`Deadline::shifted`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// The clock.
    pub clock: ClockKind,
    /// Nanoseconds on that clock.
    pub at_ns: u64,
}

impl Deadline {
    /// A deadline at `at_ns` on `clock`.
    #[must_use]
    pub const fn at(clock: ClockKind, at_ns: u64) -> Self {
        Self { clock, at_ns }
    }

    /// A deadline `after` from now on `clock`.
    #[must_use]
    pub fn after(clock: ClockKind, after: Duration) -> Self {
        Self { clock, at_ns: clock.now_ns().saturating_add(duration_ns(after)) }
    }

    /// The same deadline, `by_ns` later (or earlier).
    #[must_use]
    pub const fn shifted(self, by_ns: i64) -> Self {
        Self { clock: self.clock, at_ns: self.at_ns.saturating_add_signed(by_ns) }
    }
}

/// `d` in nanoseconds; what does not fit becomes the longest.
pub(crate) fn duration_ns(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The longest time kept between the KILL and the deadline, for the tree to be gone in.
const MARGIN_MOST_NS: u64 = 500_000_000;

/// One deadline and the two moments before it at which the keeper acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Armed {
    /// The tree is asked to end (TERM).
    pub(crate) term_at: u64,
    /// What is left of it is killed.
    pub(crate) kill_at: u64,
    /// The right ends.
    pub(crate) at: u64,
}

impl Armed {
    /// The moments for a deadline `at`, told at `told_at`. The grace is cut to a third of what the
    /// deadline leaves, and the margin of the KILL to a twelfth of it, half a second at most.
    pub(crate) fn new(at: u64, told_at: u64, grace_ns: u64) -> Self {
        let left = at.saturating_sub(told_at);
        let margin = (left / 12).min(MARGIN_MOST_NS);
        let grace = grace_ns.min(left / 3).max(margin);
        Self { term_at: at - grace, kill_at: at - margin, at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_long_term_keeps_the_whole_grace() {
        let armed = Armed::new(100 * S, 70 * S, 5 * S);
        assert_eq!(armed, Armed { term_at: 95 * S, kill_at: 100 * S - S / 2, at: 100 * S });
    }

    #[test]
    fn the_grace_is_cut_to_a_third_of_what_is_left() {
        let armed = Armed::new(103 * S, 100 * S, 5 * S);
        assert_eq!(armed, Armed { term_at: 102 * S, kill_at: 103 * S - S / 4, at: 103 * S });
    }

    #[test]
    fn no_grace_still_kills_before_the_deadline() {
        let armed = Armed::new(103 * S, 100 * S, 0);
        assert_eq!(armed.term_at, armed.kill_at);
        assert!(armed.kill_at < armed.at);
    }

    #[test]
    fn a_deadline_told_too_late_is_due_at_once() {
        let armed = Armed::new(100 * S, 101 * S, 5 * S);
        assert_eq!(armed, Armed { term_at: 100 * S, kill_at: 100 * S, at: 100 * S });
    }

    #[test]
    fn the_order_holds_for_any_numbers() {
        for at in [0, 1, 2, 11, 12, 13, S, u64::MAX] {
            for told in [0, 1, 12, S - 1, S, u64::MAX] {
                for grace in [0, 1, S, u64::MAX] {
                    let a = Armed::new(at, told, grace);
                    assert!(a.term_at <= a.kill_at && a.kill_at <= a.at, "{at} {told} {grace}");
                }
            }
        }
    }

    #[test]
    fn a_shift_moves_both_ways_and_saturates() {
        let d = Deadline::at(ClockKind::Boot, 10);
        assert_eq!(d.shifted(5).at_ns, 15);
        assert_eq!(d.shifted(-20).at_ns, 0);
    }
}
