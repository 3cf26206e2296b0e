//! Moments on a local clock that never goes back, and the trait that reads it.

use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// A moment on the local clock that a store's profile names, in nanoseconds from that clock's own
/// beginning.
///
/// Moments of different clocks, machines or boots must not be compared; nothing here can tell them
/// apart, so a moment never leaves the process that read it, except on the embedded store, whose
/// processes all read one clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The clock's own beginning, before every other moment.
    pub const START: Moment = Moment(0);
    /// Later than any moment a clock will show.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// The moment this many nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `span` before this one; the clock's beginning if there is none.
    pub fn before(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(nanos(span)))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    /// Saturates at [`Moment::NEVER`].
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(nanos(span)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Moment::NEVER => f.write_str("Moment(never)"),
            Moment(n) => write!(f, "Moment({:?})", Duration::from_nanos(n)),
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Which local clock measures the terms of a store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ClockKind {
    /// Runs while the machine sleeps (`CLOCK_BOOTTIME`, `mach_continuous_time`): for stores on
    /// other machines, whose clocks run on while this one sleeps.
    Boot,
    /// Stands still while the machine sleeps (`CLOCK_MONOTONIC`): for the embedded store, whose
    /// contenders all sleep together.
    Monotonic,
}

/// A source of [`Moment`]s. The one place where time enters.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The current moment; never earlier than one it has shown before.
    fn now(&self) -> Moment;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment::START.before(Duration::MAX), Moment::START);
        assert_eq!(Moment::START.since(Moment::NEVER), Duration::ZERO);
        let at = Moment::from_nanos(5) + Duration::from_nanos(7);
        assert_eq!(at.since(Moment::from_nanos(5)), Duration::from_nanos(7));
    }
}
