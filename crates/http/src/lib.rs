#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod body;
mod database;
#[cfg(feature = "fence")]
pub mod fence;
#[cfg(feature = "idempotency")]
pub mod idempotency;
#[cfg(any(feature = "fence", feature = "idempotency"))]
mod problem;

pub use body::{AnyBody, Body, BodyError, BoxError};
pub use database::{Database, Step};
