//! What this store promises.

use std::time::Duration;

use leasehold_core::{ClockKind, Drift, Modes, PlaceKept, Profile, Reentry};

/// The longest term.
pub(crate) const TERM_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn profile(url: String, ttl_min: u64, drift: Drift) -> Profile {
    Profile {
        name: "etcd",
        url,
        clock: ClockKind::Boot,
        drift,
        clock_hazards: &[
            "leases run on the monotonic clock of the leader: a change of leader only lengthens them",
            "a leader that was stopped and goes on may end leases that live before it hears of the new one",
        ],
        fair: true,
        queues: true,
        sees_death: false,
        place: PlaceKept::Watched,
        reentry: Reentry::Client,
        modes: Modes::ALL,
        term_bounds: (Duration::from_secs(ttl_min), TERM_MAX),
        transferable: true,
        polls_anywhere: true,
        remote: true,
        token_hazards: &[
            "tokens are revisions: a cluster restored from a backup goes back to older ones unless \
             it is restored with `--bump-revision`, or the epoch is raised",
        ],
        limits: &[
            "leases count in whole seconds, and are not shorter than 1.5 election timeouts",
            "a dead waiter costs the queue the shortest lease",
            "re-entry is counted in the process that holds",
            "after an unclean end, `after_loss` counts from when this process first sees it",
            "a foreign client is told nothing when its grant is broken",
            "servers before 3.4.42, 3.5.28 and 3.6.9 have known faults of leases and reads: see the \
             README",
        ],
    }
}
