//! What a seed makes of the world: who there is, how clocks run, and how bad things get.

use std::time::Duration;

use leasehold_core::model::Handover;
use leasehold_core::{Drift, PlaceKept};

use super::dice::Dice;
use super::faults::Fault;

/// One seed's world.
#[derive(Debug, Clone)]
pub(super) struct Weather {
    /// One machine: all read one clock and the store sees deaths by itself.
    pub(super) embedded: bool,
    pub(super) drift: Drift,
    pub(super) place: PlaceKept,
    pub(super) handover: Handover,
    /// Waiters confirm a pushed grant by a call of their own.
    pub(super) confirm_pushed: bool,
    /// The server floors tokens by a wall clock.
    pub(super) floored: bool,
    /// Parts per million that clients' clocks and the server's gain.
    pub(super) gains: Vec<i64>,
    pub(super) server_gain: i64,
    /// Thousandths of messages.
    pub(super) lost: u64,
    pub(super) twice: u64,
    pub(super) delayed: u64,
    pub(super) lock_wait: u64,
    pub(super) push_lost: u64,
    pub(super) push_late: u64,
    /// The longest pause between two blows of fate.
    pub(super) calm_ms: u64,
    /// What fate may do.
    pub(super) blows: Vec<Fault>,
    /// After so many events it ends.
    pub(super) events: u64,
}

/// What clocks may gain on each other within the allowance of a tenth.
const GAIN_MAX: u64 = 40_000;

/// Blows, and in how many of a thousand seeds each may fall. Those that break an assumption of law
/// 2 fall seldom, since beliefs are then excused.
const BLOWS: [(Fault, u64); 14] = [
    (Fault::ClientPaused, 800),
    (Fault::ClientCrashed, 600),
    (Fault::ClientFrozen, 150),
    (Fault::ClientStepped, 300),
    (Fault::ServerAhead, 150),
    (Fault::ServerBack, 300),
    (Fault::WallStepped, 500),
    (Fault::ServerPaused, 500),
    (Fault::ServerRestarted, 500),
    (Fault::Cut, 700),
    (Fault::Parted, 500),
    (Fault::Broken, 300),
    (Fault::BrokenNow, 200),
    (Fault::Cleaned, 500),
];

impl Weather {
    pub(super) fn new(dice: &mut Dice) -> Weather {
        let clients = 3 + usize::try_from(dice.below(3)).unwrap_or_default();
        let embedded = dice.chance(250);
        let drifts = !embedded && dice.chance(700);
        let mut gain = || {
            let gain = i64::try_from(dice.below(2 * GAIN_MAX + 1)).unwrap_or_default();
            if drifts { gain - 40_000 } else { 0 }
        };
        let gains = (0..clients).map(|_| gain()).collect();
        let server_gain = gain();
        let (every, term) = (Duration::from_secs(1), Duration::from_secs(3));
        let place =
            if embedded { PlaceKept::Watched } else { PlaceKept::Heartbeat { every, term } };
        let first_term = Duration::from_millis(2500);
        let push_min = dice.pick(&[first_term, Duration::from_secs(5)]);
        let apart =
            [Fault::ClientFrozen, Fault::ClientStepped, Fault::ServerAhead, Fault::ServerBack];
        let blows = BLOWS
            .iter()
            .filter(|(fault, permille)| {
                dice.chance(*permille) && !(embedded && apart.contains(fault))
            })
            .map(|(fault, _)| *fault)
            .collect();
        Weather {
            embedded,
            drift: if embedded { Drift::None } else { Drift::Tenth },
            place,
            handover: Handover { first_term, push_min },
            confirm_pushed: dice.chance(200),
            floored: dice.chance(500),
            gains,
            server_gain,
            lost: dice.pick(&[0, 10, 50, 200]),
            // One machine has no network that could bring a request twice.
            twice: dice.pick(&[0, 20, 100]) * u64::from(!embedded),
            delayed: dice.pick(&[0, 20, 150]),
            lock_wait: dice.pick(&[0, 50, 200]),
            push_lost: dice.pick(&[0, 100, 500]),
            push_late: dice.pick(&[0, 200, 600]),
            calm_ms: dice.pick(&[300, 1000, 3000]),
            blows,
            events: 250 + dice.below(150),
        }
    }
}
