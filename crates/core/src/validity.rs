//! How long a grant may be believed, counted so that belief ends before the right does.
//!
//! Belief runs until `sent_at + left − drift − margin`, where `sent_at` was read *before* the
//! request was sent that the answer vouches for, and `left` is what the store's clock leaves of the
//! term (Gray and Cheriton, "Leases", SOSP 1989, section 5, which calls the allowance ε).

use core::time::Duration;

use crate::time::Moment;

/// How much faster than ours the clock that judges a term may run within one term.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Drift {
    /// Judge and holder read one clock.
    None,
    /// A tenth of the term and 2 ms: covers a clock that is being slewed.
    Tenth,
    /// A hundredth of the term: where the user vouches for both clocks.
    Vouched,
}

impl Drift {
    /// The allowance for a term of this length.
    pub fn within(self, term: Duration) -> Duration {
        match self {
            Drift::None => Duration::ZERO,
            Drift::Tenth => term / 10 + Duration::from_millis(2),
            Drift::Vouched => term / 100,
        }
    }
}

/// What is taken off for the time between the clock's answer and the act: max(2 ms, term / 50).
pub fn margin(term: Duration) -> Duration {
    (term / 50).max(Duration::from_millis(2))
}

/// When belief ends in a grant of which the store left `left`, asked for by a request sent at
/// `sent_at`.
///
/// ```
/// use core::time::Duration;
/// use leasehold_core::{Drift, Moment, belief_end};
///
/// let sent = Moment::from_nanos(0);
/// let until = belief_end(sent, Duration::from_secs(30), Drift::Tenth);
/// assert_eq!(until.since(sent), Duration::from_millis(30_000 - 3_002 - 600));
/// ```
pub fn belief_end(sent_at: Moment, left: Duration, drift: Drift) -> Moment {
    sent_at + left.saturating_sub(drift.within(left)).saturating_sub(margin(left))
}

/// When a grant believed until `until` since `sent_at` is next renewed: after a third.
pub fn renew_due(sent_at: Moment, until: Moment) -> Moment {
    sent_at + until.since(sent_at) / 3
}

/// When a grant not renewed since `sent_at` is at risk: after two thirds.
pub fn risk_due(sent_at: Moment, until: Moment) -> Moment {
    sent_at + until.since(sent_at) / 3 * 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Law 2 in numbers: whatever the delay, a judge that gains no more than the drift on us
        /// ends the term after belief has ended.
        #[test]
        fn belief_ends_before_a_judge_within_drift_ends_the_term(
            sent_ns in 0..u64::from(u32::MAX), delay_us in 0..10_000_000_u64,
            term_ms in 50..600_000_u64, gain_permille in 0..100_u32,
        ) {
            let sent = Moment::from_nanos(sent_ns);
            let term = Duration::from_millis(term_ms);
            let until = belief_end(sent, term, Drift::Tenth);
            let granted = sent + Duration::from_micros(delay_us);
            let judged = term - term * gain_permille / 1000;
            prop_assert!(until < granted + judged);
        }

        #[test]
        fn what_is_due_lies_within_belief(sent_ns: u32, term_ms in 10..600_000_u64) {
            let sent = Moment::from_nanos(sent_ns.into());
            let until = belief_end(sent, Duration::from_millis(term_ms), Drift::None);
            prop_assert!(renew_due(sent, until) <= risk_due(sent, until));
            prop_assert!(risk_due(sent, until) <= until);
        }
    }
}
