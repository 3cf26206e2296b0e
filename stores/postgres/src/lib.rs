#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod answer;
mod break_;
mod clean;
mod config;
mod connect;
mod enter;
mod error;
mod hub;
mod inspect;
mod leave;
mod line;
mod list;
mod listen;
mod quick;
mod read;
mod renew;
mod schema;
mod store;
mod write;

pub use config::{Listen, PostgresConfig};
pub use store::PostgresStore;
