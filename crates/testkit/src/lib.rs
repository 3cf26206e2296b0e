//! The test kit of leasehold.
//!
//! - [`Harness`] and [`conformance!`](conformance!): one suite for every store; the harness says how
//!   to hurt a store, the suite says what must survive.
//! - [`MemoryHarness`]: the suite's first user, core's `Model` behind a mutex.
//! - [`process`]: child processes to stop and kill.
//! - [`sim`]: the seeded simulation.
//! - `server` and `proxy` (Linux): real servers as child processes, and what cuts, holds and delays
//!   the way to them; `interop`: lock clients of other languages.
//! - [`contest`]: contenders at a store that is hurt meanwhile.
//! - [`History`](history::History), [`Recorder`] and [`checkers`]: what happened, and which promise
//!   it broke.

#![forbid(unsafe_code)]

mod block_on;
pub mod checkers;
pub mod conformance;
#[cfg(target_os = "linux")]
pub mod contest;
pub mod doomed;
mod harness;
pub mod history;
#[cfg(target_os = "linux")]
pub mod interop;
mod memory;
#[cfg(unix)]
pub mod process;
#[cfg(target_os = "linux")]
pub mod proxy;
mod recorder;
#[cfg(target_os = "linux")]
pub mod server;
pub mod sim;

pub use block_on::block_on;
pub use conformance::{Form, World, run_case, run_case_as};
pub use harness::{Ability, Harness, Hurt, LocalFuture};
pub use memory::MemoryHarness;
pub use recorder::Recorder;
