//! For how long a lock is waited for.

use std::time::{Duration, Instant};

use super::Error;

/// What to do where another has the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// Say so at once: NOWAIT.
    No,
    /// Wait for it, at most so long; longer than an hour is taken for an hour.
    AtMost(Duration),
}

/// What bounds every wait: a transaction that waits for longer holds up more than it gains.
const LONGEST: Duration = Duration::from_secs(3600);

impl Wait {
    /// The refusal that fits.
    pub(super) fn refused(self, name: &str, rolled_back: bool) -> Error {
        let name = name.to_owned();
        match self {
            Wait::No => Error::Busy { name, rolled_back },
            Wait::AtMost(after) => Error::WaitOver { name, after, rolled_back },
        }
    }

    /// The wait from now on.
    pub(super) fn begin(self) -> Left {
        match self {
            Wait::No => Left(None),
            Wait::AtMost(at_most) => Left(Some(Instant::now() + at_most.min(LONGEST))),
        }
    }
}

/// What is left of a wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left(Option<Instant>);

impl Left {
    /// `None` if it is over, or there was none.
    pub(super) fn time(self) -> Option<Duration> {
        let left = self.0?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// Whole milliseconds, at least one: none would mean for ever.
pub(super) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
}

/// Whole seconds, at least one.
pub(super) fn seconds(time: Duration) -> i64 {
    (millis(time) - 1) / 1000 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_rounded_up_and_never_to_for_ever() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_micros(1001)), 2);
        assert_eq!(seconds(Duration::from_micros(1)), 1);
        assert_eq!(seconds(Duration::from_millis(1000)), 1);
        assert_eq!(seconds(Duration::from_millis(1001)), 2);
        assert!(Wait::No.begin().time().is_none());
        let left = Wait::AtMost(Duration::MAX).begin().time().unwrap();
        assert!(left <= LONGEST);
        assert!(Wait::AtMost(Duration::ZERO).begin().time().is_none());
    }
}
