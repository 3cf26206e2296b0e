#![doc = include_str!("../README.md")]

mod class;
mod connection;
mod error;
mod now;
mod transaction;
mod value;

#[cfg(feature = "mysql_async-0_37")]
mod mysql_async_0_37;
#[cfg(feature = "rusqlite-0_40")]
mod rusqlite_0_40;
#[cfg(any(feature = "sqlx-0_9-mysql", feature = "sqlx-0_9-postgres", feature = "sqlx-0_9-sqlite"))]
mod sqlx_0_9;
#[cfg(feature = "tokio-postgres-0_7")]
mod tokio_postgres_0_7;

pub use class::Class;
pub use connection::{Begun, Connection};
pub use error::{Error, Result};
pub use now::now;
pub use transaction::{Answer, Engine, Transaction};
pub use value::{Row, Value};
