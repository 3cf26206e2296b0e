//! The pure core of leasehold.
//!
//! Words, laws and machines without I/O, clock or task: what every store, the driver, the test kit
//! and the fences share. `no_std` with `alloc`, so that the compiler proves it.
//!
//! - [`ResourceName`], [`Claim`], [`Holder`], [`Mode`]: what is asked for.
//! - [`Token`], [`Mark`], [`Marks`]: what the protected thing compares.
//! - [`admission`]: the one predicate.
//! - [`belief_end`]: when to stop believing.
//! - [`Store`], [`Profile`]: the contract of a store.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acquire;
pub mod admission;
mod answer;
mod backoff;
mod claim;
mod error;
pub mod model;
mod name;
mod profile;
pub mod renewal;
mod store;
mod time;
mod token;
mod validity;

pub use acquire::{Acquire, AcquirePlan, Patience};
pub use answer::{
    Admission, Broken, Busy, Cleaned, Cursor, Ended, Grant, Hint, Left, Occupant, Page, Previous,
    Pushed, PushedEnd, Queue, QueueEntry, QueueState, Record, Renewed, Slots, Waiting, Written,
};
pub use backoff::{Backoff, Noise};
pub use claim::{
    BadId, Claim, ClaimId, ClaimRef, Holder, HolderId, Ids, Kind, Life, Mode, Place, Ticket,
};
pub use error::{Applied, Error, ErrorKind, Result};
pub use model::Model;
pub use name::{BadName, ResourceName, shown};
pub use profile::{Modes, PlaceKept, Profile, Reentry};
pub use renewal::{Keep, Loss, Renewal};
pub use store::{Route, Store};
pub use time::{Clock, ClockKind, Moment};
pub use token::{Access, Epoch, Mark, Marks, ParseMarkError, Stale, Token};
pub use validity::{Drift, belief_end, margin, renew_due, risk_due};
