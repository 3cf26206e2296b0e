#![doc = include_str!("../README.md")]

mod break_;
mod clean;
mod config;
mod durable;
mod enter;
mod hub;
mod inspect;
mod keys;
mod leave;
mod link;
mod list;
#[doc(hidden)]
pub mod member;
mod open;
mod read;
mod renew;
mod scripts;
mod store;
mod told;
mod usual;
mod write;

pub use config::{Durability, Layout, RedisConfig, Servers};
pub use store::RedisStore;
