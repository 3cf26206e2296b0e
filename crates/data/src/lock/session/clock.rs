//! The clock by which belief ends: one that runs while this machine sleeps, as the server's does.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Since this machine was started.
pub(super) fn now() -> Duration {
    let at = clock_gettime(CLOCK);
    let (seconds, nanos) = (u64::try_from(at.tv_sec), u32::try_from(at.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}
