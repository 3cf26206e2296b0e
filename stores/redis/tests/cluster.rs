//! The suite that every store passes, at a cluster of six nodes.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/deployed.rs"]
mod deployed;

use std::sync::Mutex;

use deployed::{Deployed, Pool};
use leasehold_testkit::server::redis::Cluster;

static POOL: Pool<Cluster> = Mutex::new(Vec::new());

leasehold_testkit::conformance!(Deployed::of(&POOL, Cluster::start));
