//! What the stores of leasehold share that are reached over a network: how their URLs are read,
//! secrets that never show, TLS, the threads on which their connections live, and the watch over a
//! server's clock.
//!
//! For authors of stores; users meet it as the types of a store's configuration.
//!
//! - [`StoreUrl`]: one strict reader for `scheme://user:password@host:port,host/path?option=value`.
//! - [`Secret`]: a password that is wiped when dropped and shows as `***` in every output.
//! - [`Tls`]: certificates by path, one rustls configuration.
//! - [`Io`]: where a store's tasks run.
//! - [`BootClock`]: the local clock by which belief in a remote store is measured.
//! - [`ServerClock`]: notices that a server's clock has stepped.

#![forbid(unsafe_code)]

mod clock;
mod io;
mod secret;
mod server_clock;
mod tls;
mod url;

pub use clock::BootClock;
pub use io::Io;
pub use secret::Secret;
pub use server_clock::{ServerClock, Skew};
pub use tls::{Pems, Tls};
pub use url::{HostPort, StoreUrl};
