//! What the store promises.

use leasehold_core::{ClockKind, Modes, PlaceKept, Profile, Reentry};

use crate::config::RedlockConfig;
use crate::store::{PLACE, TERM_MIN};

const QUEUE: &str = "no queue: who waits tries again, and nobody is served in order";
const RESTART: &str = "a member that has started anew, or whose user may not ask for INFO, counts \
                       in no majority for `max_term`, unless every write was on its disk \
                       (appendfsync always) and it has kept them";
const EVICTION: &str = "members with an eviction policy other than noeviction may evict locks";
const EVEN: &str = "an even number of members: one fewer would survive as many failures";
const SLOTS: &str = "permits are exclusive slots, each held by a majority: under contention some \
                     may stay free for a moment";

pub(crate) fn profile(config: &RedlockConfig) -> Profile {
    Profile {
        name: "redlock",
        url: config.url(),
        clock: ClockKind::Boot,
        drift: config.drift,
        clock_hazards: &[
            "the wall clocks of a majority of members are set forward: terms end early",
        ],
        fair: false,
        queues: false,
        sees_death: false,
        place: PlaceKept::Heartbeat { every: PLACE.0, term: PLACE.1 },
        reentry: Reentry::Store,
        modes: Modes { shared: false, permits: true },
        term_bounds: (TERM_MIN, config.max_term),
        transferable: true,
        polls_anywhere: true,
        remote: true,
        token_hazards: &[
            "the members that two grants have in common have lost their counters, and a clock \
             that minted was ahead by more than the time until the next grant",
            "members let a grant go before its term, so that the grants overlap",
        ],
        limits: if config.members.len().is_multiple_of(2) {
            &[QUEUE, RESTART, EVICTION, SLOTS, EVEN]
        } else {
            &[QUEUE, RESTART, EVICTION, SLOTS]
        },
    }
}
