#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod break_;
mod changed;
mod clean;
mod config;
mod connect;
mod desk;
mod enter;
mod error;
mod inspect;
mod keys;
mod leases;
mod leave;
mod list;
mod look;
mod mirror;
mod orphans;
mod profile;
mod proto;
#[doc(hidden)]
pub mod raw;
mod read;
mod renew;
mod rpc;
mod store;
mod txn;
mod value;
mod watch;
mod write;

pub use config::{EtcdConfig, Names};
pub use store::EtcdStore;
