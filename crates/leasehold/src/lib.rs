//! Distributed locks, leases and fencing tokens over the stores you already run.
//!
//! A lock among processes is a promise about time: its holder may be late without noticing. So
//! every lock here is a lease with a term; it is renewed in the background while it is held; its
//! holder is told *before* the term can end ([`Lease::lost`], [`Lease::run`]); and it carries a
//! fencing [`Token`] that only rises, for the protected thing to check.
//!
//! ```
//! use std::time::Duration;
//!
//! # leasehold::blocking::block_on(async {
//! let client = leasehold::connect("memory:").await?; // or sqlite:/var/lib/app/locks.db
//!
//! // Alone.
//! let lease = client.lock("nightly").ttl(Duration::from_secs(30)).acquire().await?;
//! let report = lease.run(async { "the report" }).await?;
//! assert_eq!(report, "the report");
//! lease.release().await;
//!
//! // Not alone if somebody else is at it.
//! let first = client.lock("nightly").acquire().await?;
//! assert!(client.lock("nightly").try_acquire().await?.is_none());
//!
//! // With other readers, or as one of three.
//! let reader = client.lock("table").shared().acquire().await?;
//! let one = client.lock("uploads").permits(1, 3).acquire().await?;
//! assert_eq!(one.slots().as_slice(), [0]);
//! # drop((first, reader, one));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # When not to use it
//!
//! Between the threads of one process a `Mutex` is right. Where the protected thing is a database,
//! a unique key, a conditional update or a version column is absolutely right where a lock is
//! right with high probability; keep the lock for work outside of the database, and let the
//! database check the token.
//!
//! # Runtimes
//!
//! The futures need no particular runtime. Where a store allows it
//! ([`Profile::polls_anywhere`](core::Profile)), a call runs where it is awaited, and a grant wakes
//! the task that waits for it and no thread before; elsewhere calls run on one thread of the
//! client's own. Renewals always do, so that a caller that blocks its runtime does not lose its
//! leases. A task that waits and is not polled for seconds when its turn comes misses that turn,
//! and goes on at the end of the queue. [`blocking`] is the same for programs without a runtime.
//!
//! After `fork` a child process has no client: make a new one.
//!
//! # Features
//!
//! `sqlite` (default): the embedded store. Without it there is [`memory`] and whatever
//! implements [`Store`] and is given to [`Client::new`].
//!
//! `redis`, `postgres`, `mysql`, `etcd`, `zookeeper`: the stores over a network, each with its own
//! client and no other's. `net`: what they share, such as secrets and TLS; each of them turns it on.

#![forbid(unsafe_code)]

pub mod blocking;
mod cell;
mod claimed;
mod client;
mod clock;
mod connect;
mod driver;
mod here;
mod lease;
mod lost;
pub mod memory;
mod observer;
mod random;
mod request;
mod timer;
mod turns;

pub use cell::State;
pub use claimed::Claimed;
pub use client::{Client, Closed, Options, now};
pub use clock::{HandClock, SystemClock};
pub use connect::{Connect, STORE_URLS, connect};
pub use lease::{CheckError, Lease, Release};
pub use leasehold_core as core;
pub use leasehold_core::{
    Access, Applied, Broken, Busy, ClaimId, Cleaned, ClockKind, Ended, Epoch, Error, ErrorKind,
    Holder, HolderId, Left, Life, Loss, Mark, Marks, Mode, Moment, Page, Previous, Profile, Queue,
    QueueEntry, QueueState, ResourceName, Result, Slots, Stale, Store, Token, Waiting,
};
pub use lost::Lost;
pub use observer::Observer;
pub use request::{AcquireError, Request};

/// The embedded store: many processes of one machine, no server.
#[cfg(feature = "sqlite")]
pub use leasehold_sqlite as sqlite;

/// Redis and Valkey: locks shared with Redisson and with every `SET NX` client.
#[cfg(feature = "redis")]
pub use leasehold_redis as redis;

/// Redlock: a majority of independent Redis servers.
#[cfg(feature = "redlock")]
pub use leasehold_redlock as redlock;

/// ZooKeeper: locks shared with Curator.
#[cfg(feature = "zookeeper")]
pub use leasehold_zookeeper as zookeeper;

/// etcd: locks shared with Go's `concurrency` package and `etcdctl`.
#[cfg(feature = "etcd")]
pub use leasehold_etcd as etcd;

/// MySQL and MariaDB: leases in two tables of a database.
#[cfg(feature = "mysql")]
pub use leasehold_mysql as mysql;

/// PostgreSQL: leases in two tables of a database.
#[cfg(feature = "postgres")]
pub use leasehold_postgres as postgres;

/// What the stores over a network share: secrets, TLS, URLs.
#[cfg(feature = "net")]
pub use leasehold_net as net;

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeExamples;
