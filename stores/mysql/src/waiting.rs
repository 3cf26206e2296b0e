//! When a waiting claim looks again by itself.

use std::time::Duration;

use leasehold_core::Waiting;

/// How often at least. A grant that was handed to a process which was then stopped ends after its
/// short first term; that nobody sees but the next in line who looks.
const RECHECK: Duration = Duration::from_secs(3);
/// The later in line, the later the look when a term runs out: one at a time.
const STAGGER: Duration = Duration::from_millis(20);

/// The answer of the specification, with the next look bounded, staggered and jittered.
pub(crate) fn looks_again(waiting: Waiting) -> Waiting {
    let place = waiting.ahead.unwrap_or(0).saturating_sub(1).min(100);
    let jitter = Duration::from_millis(waiting.ticket.0.wrapping_mul(37) % 1000);
    let free_in = waiting.recheck_in + STAGGER * place;
    Waiting { recheck_in: free_in.min(RECHECK + jitter) + Duration::from_millis(1), ..waiting }
}
