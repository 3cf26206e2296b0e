//! Waiting for a condition, with an end.

use std::thread;
use std::time::{Duration, Instant};

/// How long between two looks.
pub(super) const STEP: Duration = Duration::from_millis(10);

/// Looks again and again until `check` has nothing to complain about.
///
/// # Panics
///
/// If it still complains after this time: with the last complaint.
pub fn wait_until(what: &str, within: Duration, mut check: impl FnMut() -> Result<(), String>) {
    let end = Instant::now() + within;
    loop {
        match check() {
            Ok(()) => return,
            Err(why) => assert!(Instant::now() < end, "not {what} within {within:?}: {why}"),
        }
        thread::sleep(STEP);
    }
}
