//! The suite that every store passes, over five real servers, in both layouts.
#![allow(clippy::unwrap_used)]

mod common;

mod plain {
    use crate::common::World;
    use leasehold_redlock::Layout;

    leasehold_testkit::conformance!(World::new(Layout::Plain));
}

mod redisson {
    use crate::common::{World, start};
    use leasehold_redlock::Layout;
    use leasehold_testkit::server::redis::Redis;
    use std::sync::OnceLock;

    /// Members are of one layout, so these have servers of their own.
    fn servers() -> &'static [Redis] {
        static SERVERS: OnceLock<Vec<Redis>> = OnceLock::new();
        SERVERS.get_or_init(start)
    }

    leasehold_testkit::conformance!(World::over(servers(), Layout::Redisson));
}
