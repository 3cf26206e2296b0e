//! The classic scenarios of locking, each against a real PostgreSQL: the wrong way failing with a
//! count, then the right way exact. And a service with all of it: [`service`].
//!
//! ```sh
//! cargo run -q -p leasehold-examples --bin stock                            # a server of its own
//! cargo run -q -p leasehold-examples --bin stock postgres://me@db.example/test
//! ```
//!
//! With a URL each makes a schema `leasehold_example_…` there, anew at each run, and touches nothing
//! else.

pub mod cache;
pub mod callback;
pub mod clicks;
pub mod db;
pub mod nightly;
pub mod provider;
pub mod service;
pub mod stock;
pub mod way;

/// Anything may go wrong in an example.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// As [`Error`] says.
pub type Result<T, E = Error> = std::result::Result<T, E>;
