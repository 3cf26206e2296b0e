//! Distributed locks, leases and fencing tokens over the stores you already run.

#![forbid(unsafe_code)]

pub mod blocking;
mod cell;
mod claimed;
mod client;
mod clock;
mod connect;
mod driver;
mod lease;
mod lost;
pub mod memory;
mod observer;
mod random;
mod request;
mod timer;
mod turns;

pub use cell::State;
pub use claimed::Claimed;
pub use client::{Client, Closed, Options, now};
pub use clock::{HandClock, SystemClock};
pub use connect::connect;
pub use lease::{CheckError, Lease, Release};
pub use leasehold_core as core;
pub use leasehold_core::{
    Access, Applied, Broken, Busy, ClaimId, Cleaned, ClockKind, Ended, Epoch, Error, ErrorKind,
    Holder, HolderId, Left, Life, Loss, Mark, Marks, Mode, Moment, Page, Previous, Profile, Queue,
    QueueEntry, QueueState, ResourceName, Result, Slots, Stale, Store, Token, Waiting,
};
pub use lost::Lost;
pub use observer::Observer;
pub use request::{AcquireError, Request};

/// The embedded store: many processes of one machine, no server.
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite as sqlite;
