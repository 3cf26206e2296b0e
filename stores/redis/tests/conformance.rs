//! The suite that every store passes, in both layouts.
#![allow(clippy::unwrap_used)]

mod common;

mod redisson {
    use crate::common::{Served, shared};
    use leasehold_redis::Layout;

    leasehold_testkit::conformance!(Served::at(shared(), Layout::Redisson));
}

mod plain {
    use crate::common::{Served, shared};
    use leasehold_redis::Layout;

    leasehold_testkit::conformance!(Served::at(shared(), Layout::Plain));
}
