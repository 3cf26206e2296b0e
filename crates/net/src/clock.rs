//! The local clock for stores on other machines.

use leasehold_core::{Clock, Moment};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_BOOTTIME`: it runs while this machine sleeps, as the clocks of the servers do.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let at = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(at.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(at.tv_nsec).unwrap_or_default();
        Moment::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}
