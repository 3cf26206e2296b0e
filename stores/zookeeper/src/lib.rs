#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod break_;
mod card;
mod changed;
mod check;
mod clean;
mod config;
mod enter;
mod error;
mod expire;
mod hall;
mod inspect;
mod leave;
mod list;
mod look;
mod names;
mod open;
mod queue;
mod read;
mod renew;
mod seat;
mod store;
mod wait;
mod wire;
mod write;

pub use config::{Layout, Naming, ZookeeperConfig};
pub use store::ZookeeperStore;
pub use wire::Acl;
