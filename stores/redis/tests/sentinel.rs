//! The suite that every store passes, at a master under Sentinels.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/deployed.rs"]
mod deployed;

use std::sync::Mutex;
use std::time::Duration;

use deployed::{Deployed, Pool};
use leasehold_testkit::server::redis::Sentinels;

static POOL: Pool<Sentinels> = Mutex::new(Vec::new());

// A pause is to be a pause, and not a failover.
fn start() -> Sentinels {
    Sentinels::patient(Duration::from_secs(60))
}

leasehold_testkit::conformance!(Deployed::of(&POOL, start));
