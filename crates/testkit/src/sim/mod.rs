//! The seeded simulation: core's machines against core's `Model` over a network, clocks and
//! processes that fail, then healing; the history is checked.
//!
//! The same seed makes the same history, on every machine. Nothing waits and nothing is random but
//! the seed, so thousands of schedules run in a second.
//!
//! ```
//! let run = leasehold_testkit::sim::simulate(7, None);
//! assert_eq!(run.verdict, Ok(()));
//! ```

mod bugs;
mod client;
mod clock;
mod dice;
mod driver;
mod fate;
mod faults;
mod server;
mod tasks;
mod thing;
mod weather;
mod world;

pub use bugs::Bug;
pub use faults::{Fault, Fired};

use crate::checkers::{Verdict, Violation, check_all};
use crate::history::History;
use world::World;

/// What one schedule came to.
#[derive(Debug)]
pub struct Run {
    /// What happened.
    pub history: History,
    /// How many events it took.
    pub events: u64,
    /// How often each fault fired.
    pub fired: Fired,
    /// The first broken promise.
    pub verdict: Verdict,
}

/// Runs the schedule of a seed, with a planted bug or without.
pub fn simulate(seed: u64, bug: Option<Bug>) -> Run {
    let mut world = World::new(seed, bug);
    world.run();
    let spins = world.spins();
    let World { history, events, fired, .. } = world;
    let verdict = if spins {
        let how = format!("{events} events and no end");
        Err(Violation { promise: "progress", event: history.events.len(), how })
    } else {
        check_all(&history)
    };
    Run { history, events, fired, verdict }
}

/// The command that replays a schedule.
pub fn replay_command(seed: u64, bug: Option<Bug>) -> String {
    let bug = bug.map(|b| format!(" --bug {b}")).unwrap_or_default();
    format!("cargo run --release -p leasehold-testkit --bin leasehold-sim -- --seed {seed}{bug}")
}
