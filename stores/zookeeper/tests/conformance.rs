//! The suite that every store passes, on each release of the server and in each layout.
#![allow(clippy::unwrap_used)]

mod common;

use leasehold_testkit::server::zookeeper::Release;
use leasehold_zookeeper::Layout;

mod system {
    use super::*;

    leasehold_testkit::conformance!(common::World::new(Release::System, Layout::Mutex));
}

mod newest {
    use super::*;

    leasehold_testkit::conformance!(common::World::new(Release::Newest, Layout::ReadWrite));
}
