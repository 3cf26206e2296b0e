//! The suite that every store passes, on each release of the server; once with claims that can be
//! passed on and have leases of their own, once with those of a process, which share its leases.
#![allow(clippy::unwrap_used)]

mod common;

use leasehold_testkit::server::etcd::Release;

mod system {
    use super::*;

    leasehold_testkit::conformance!(common::World::new(Release::System, true));
}

mod newest {
    use super::*;

    leasehold_testkit::conformance!(common::World::new(Release::Newest, false));
}
