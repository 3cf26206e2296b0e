#![doc = include_str!("../README.md")]

mod ask;
mod break_;
mod clean;
mod config;
mod core;
mod enter;
mod inspect;
mod leave;
mod list;
mod member;
mod open;
mod pilot;
mod profile;
mod read;
mod renew;
mod store;
mod write;

pub use config::RedlockConfig;
pub use leasehold_redis::Layout;
pub use store::RedlockStore;
