//! The suite at the oldest server that is supported and at the newest that is here; the one between
//! them is in `conformance.rs`.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::OnceLock;

use leasehold_testkit::server::redis::{Binary, Options, Redis, versions};

fn at(server: &'static OnceLock<Redis>, which: fn(&[Binary]) -> &Binary) -> &'static Redis {
    server.get_or_init(|| {
        let binary = which(&versions()).path.clone();
        Redis::with(Options { binary: Some(binary), ..Options::default() })
    })
}

fn oldest() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    at(&SERVER, |all| all.first().unwrap())
}

fn newest() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    at(&SERVER, |all| all.last().unwrap())
}

mod oldest_server {
    use crate::common::Served;
    use leasehold_redis::Layout;

    leasehold_testkit::conformance!(Served::at(crate::oldest(), Layout::Redisson));
}

mod newest_server {
    use crate::common::Served;
    use leasehold_redis::Layout;

    leasehold_testkit::conformance!(Served::at(crate::newest(), Layout::Plain));
}
