//! The same for programs without an async runtime.
//!
//! Blocks the calling thread; may be called inside a runtime too (it needs none and enters none),
//! though it then blocks one of its threads.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", folder.path().join("locks.db").display());
//! let client = leasehold::blocking::connect(&url)?;
//! let lease = leasehold::blocking::acquire(client.lock("nightly"))?;
//! println!("alone, with token {}", lease.token());
//! let _ = leasehold::blocking::release(lease);
//! # Ok(())
//! # }
//! ```

use std::future::Future;
use std::time::Duration;

use leasehold_core::{Loss, Result};

use crate::client::{Client, Closed};
use crate::connect::Connect;
use crate::lease::{Lease, Release};
use crate::request::{AcquireError, Request};

/// Runs a future of this crate to its end on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    futures_lite::future::block_on(future)
}

/// As [`crate::connect`].
///
/// # Errors
///
/// As [`crate::connect`].
pub fn connect(url: &str) -> Result<Client> {
    block_on(crate::connect(url))
}

/// As [`Connect::open`].
///
/// # Errors
///
/// As [`Connect::open`].
pub fn open(connect: Connect) -> Result<Client> {
    block_on(connect.open())
}

/// As [`Request::acquire`].
///
/// # Errors
///
/// As [`Request::acquire`].
pub fn acquire(request: Request) -> Result<Lease, AcquireError> {
    block_on(request.acquire())
}

/// As [`Request::try_acquire`].
///
/// # Errors
///
/// As [`Request::try_acquire`].
pub fn try_acquire(request: Request) -> Result<Option<Lease>> {
    block_on(request.try_acquire())
}

/// As [`Lease::release`].
pub fn release(lease: Lease) -> Release {
    block_on(lease.release())
}

/// Waits until the lease is lost; for a thread of its own, since it waits for ever if it is not.
pub fn until_lost(lease: &Lease) -> Loss {
    block_on(lease.lost())
}

/// As [`Client::close`].
pub fn close(client: Client, within: Duration) -> Closed {
    block_on(client.close(within))
}
