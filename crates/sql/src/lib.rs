#![doc = include_str!("../README.md")]

mod error;
mod transaction;
mod value;

#[cfg(feature = "tokio-postgres-0_7")]
mod tokio_postgres_0_7;

pub use error::{Class, Error, Result};
pub use transaction::{Answer, Engine, Transaction};
pub use value::{Row, Value};
