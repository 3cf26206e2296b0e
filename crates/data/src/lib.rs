#![doc = include_str!("../README.md")]

pub mod idempotency;
pub mod lock;

mod error;
mod name;

pub use error::{Error, Result};
pub use name::{Param, Table};
