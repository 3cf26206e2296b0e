#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod back;
mod break_;
mod cells;
mod clean;
mod config;
mod core;
mod desk;
mod engine;
mod enter;
mod error;
mod hub;
mod inspect;
mod lanes;
mod leave;
mod list;
mod lit;
mod now;
mod quick;
mod read;
mod renew;
mod rows;
mod server;
mod session;
mod store;
mod waiting;
mod wake;
mod write;

pub use config::{MysqlConfig, Wake};
#[doc(hidden)]
pub use now::Clocks;
pub use store::MysqlStore;
