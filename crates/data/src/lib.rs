#![doc = include_str!("../README.md")]

pub mod conditional;
pub mod idempotency;
pub mod lock;
pub mod retry;
pub mod unique;
pub mod version;

mod error;
mod name;

pub use error::{Error, Result};
pub use name::{Param, Table};
