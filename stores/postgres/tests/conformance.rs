//! The suite that every store passes, on a real server: directly, and through a pooler.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use leasehold_core::{Clock, Moment, ResourceName, Store};
use leasehold_net::BootClock;
use leasehold_postgres::{Listen, PostgresStore};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::pgbouncer::PgBouncer;
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, block_on};

/// A schema of its own, behind a proxy that can be cut.
struct Tables {
    schema: String,
    listen: Listen,
    proxy: Proxy,
}

impl Tables {
    fn direct() -> Tables {
        Tables::at(common::server().port(), Listen::Auto)
    }

    /// Through a pooler that passes no notification on.
    fn pooled() -> Tables {
        static POOLER: OnceLock<PgBouncer> = OnceLock::new();
        let pooler = POOLER.get_or_init(|| PgBouncer::start(common::server().port(), 8));
        Tables::at(pooler.port(), Listen::Never)
    }

    fn at(port: u16, listen: Listen) -> Tables {
        let schema = common::schema();
        let proxy = Proxy::start(([127, 0, 0, 1], port).into());
        Tables { schema, listen, proxy }
    }
}

impl Harness for Tables {
    fn open(&self) -> Arc<dyn Store> {
        let mut config = common::config(self.proxy.port(), &self.schema);
        config.listen = self.listen.clone();
        Arc::new(block_on(PostgresStore::connect(config)).unwrap())
    }

    fn now(&self) -> Moment {
        BootClock.now()
    }

    fn pass(&self, span: Duration) {
        std::thread::sleep(span);
    }

    fn run(&self, case: LocalFuture<'_>) {
        block_on(case);
    }

    fn hurt(&self, hurt: Hurt<'_>) -> Ability {
        match hurt {
            Hurt::Kill(_) => Ability::Absent("the server does not see the death of a process"),
            Hurt::Sever => {
                self.proxy.sever();
                Ability::Done
            }
            Hurt::Pause => {
                self.proxy.pause();
                Ability::Done
            }
            Hurt::Resume => {
                self.proxy.resume();
                Ability::Done
            }
            Hurt::Evict(name) => {
                self.evict(name);
                Ability::Done
            }
        }
    }
}

impl Tables {
    /// As an operator's hand would.
    fn evict(&self, name: &ResourceName) {
        let (name, schema) = (name.as_str().replace('\'', "''"), &self.schema);
        common::server().sql(&format!(
            "DELETE FROM {schema}.leasehold_claim WHERE resource = '{name}';
             DELETE FROM {schema}.leasehold_record WHERE resource = '{name}';
             DELETE FROM {schema}.leasehold_resource WHERE name = '{name}'"
        ));
    }
}

mod direct {
    use super::*;

    leasehold_testkit::conformance!(Tables::direct());
}

mod pooled {
    use super::*;

    leasehold_testkit::conformance!(Tables::pooled());
}
