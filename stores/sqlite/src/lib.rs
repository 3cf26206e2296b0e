#![doc = include_str!("../README.md")]

mod break_;
mod changed;
mod clean;
mod config;
mod desk;
mod enter;
mod entry;
mod error;
mod fifo;
mod files;
mod hub;
mod inspect;
mod leave;
mod list;
mod live;
mod log;
mod machine;
mod message;
mod open;
mod read;
mod renew;
mod resource;
mod rows;
mod store;
mod sys;
mod tx;
mod watch;
mod write;

pub use config::SqliteConfig;
pub use machine::{BootId, Machine, WallClock};
pub use store::SqliteStore;

/// The tables of a database, to be read: they are made when it is opened for the first time.
pub fn schema_sql() -> &'static str {
    include_str!("schema.sql")
}
