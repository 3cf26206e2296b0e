//! The suite, on a real MariaDB.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_lite::future::block_on;
use leasehold_core::{Clock, Moment, ResourceName, Store};
use leasehold_mysql::MysqlStore;
use leasehold_net::BootClock;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture};

/// A part of the server that all cases share: each has names of its own.
struct Shared {
    clients: Mutex<Vec<(Arc<dyn Store>, Proxy)>>,
}

impl Shared {
    fn new() -> Shared {
        common::server();
        Shared { clients: Mutex::default() }
    }

    fn each(&self, hurt: impl Fn(&Proxy)) -> Ability {
        self.clients.lock().unwrap().iter().for_each(|(_, proxy)| hurt(proxy));
        Ability::Done
    }
}

impl Harness for Shared {
    fn open(&self) -> Arc<dyn Store> {
        let proxy = Proxy::start(common::server().addr());
        let config = common::config(proxy.port());
        let store: Arc<dyn Store> = Arc::new(block_on(MysqlStore::connect(config)).unwrap());
        self.clients.lock().unwrap().push((Arc::clone(&store), proxy));
        store
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
            Hurt::Kill(killed) => {
                let clients = self.clients.lock().unwrap();
                let (_, proxy) =
                    clients.iter().find(|(client, _)| Arc::ptr_eq(client, killed)).unwrap();
                proxy.refuse(true);
                proxy.sever();
                Ability::Done
            }
            Hurt::Sever => self.each(Proxy::sever),
            Hurt::Pause => self.each(Proxy::pause),
            Hurt::Resume => self.each(Proxy::resume),
            Hurt::Evict(name) => {
                common::evict(name);
                Ability::Done
            }
        }
    }
}

leasehold_testkit::conformance!(Shared::new());

/// What [`Hurt::Evict`] stands on.
#[test]
fn an_evicted_name_is_gone() {
    let name = ResourceName::new("evicted").unwrap();
    let store = block_on(MysqlStore::connect(common::config(common::server().port()))).unwrap();
    block_on(store.enter(&common::claim("evicted"))).unwrap();
    common::evict(&name);
    assert!(block_on(store.inspect(&name)).unwrap().entries.is_empty());
}
