#![doc = include_str!("../README.md")]

mod error;
mod resource;

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sql")]
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

pub use error::{Error, ErrorKind, Result};
pub use leasehold_core::{
    Access, Applied, BadName, Epoch, Mark, Marks, ParseMarkError, ResourceName, Stale, Token,
};
pub use resource::Resource;
