//! The suite that every store passes, over five real servers.
#![allow(clippy::unwrap_used)]

mod common;

use leasehold_redlock::Layout;

leasehold_testkit::conformance!(common::World::new(Layout::Plain));
