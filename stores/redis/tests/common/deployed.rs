//! Worlds at deployments of several servers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{Clock, Moment, Store};
use leasehold_net::BootClock;
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::redis::{Cluster, Sentinels};
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, block_on};

use crate::common::keys_of;

/// A deployment whose servers stand behind proxies.
pub(crate) trait Deployment: Send + Sync + 'static {
    fn url(&self) -> String;
    fn proxies(&self) -> &[Proxy];
    /// Deletes all keys of a resource.
    fn forget(&self, name: &str);
}

impl Deployment for Sentinels {
    fn url(&self) -> String {
        self.url()
    }

    fn proxies(&self) -> &[Proxy] {
        self.proxies()
    }

    fn forget(&self, name: &str) {
        crate::common::forget(&self.servers()[self.master()], name);
    }
}

impl Deployment for Cluster {
    fn url(&self) -> String {
        self.url()
    }

    fn proxies(&self) -> &[Proxy] {
        self.proxies()
    }

    fn forget(&self, name: &str) {
        let slot = self.cli(0, &["CLUSTER", "KEYSLOT", name]).parse().unwrap();
        let keys = keys_of(name);
        let mut command = vec!["DEL"];
        command.extend(keys.iter().map(String::as_str));
        self.cli(self.owner(slot, 0).unwrap(), &command);
    }
}

/// Deployments that stand still between two cases.
pub(crate) type Pool<D> = Mutex<Vec<D>>;

/// A world that has a deployment for itself, since it may be hurt as a whole.
pub(crate) struct Deployed<D: Deployment> {
    pool: &'static Pool<D>,
    deployment: Option<D>,
    clients: Mutex<Vec<Arc<dyn Store>>>,
}

impl<D: Deployment> Deployed<D> {
    pub(crate) fn of(pool: &'static Pool<D>, start: impl FnOnce() -> D) -> Deployed<D> {
        let waiting = pool.lock().unwrap().pop();
        let deployment = Some(waiting.unwrap_or_else(start));
        Deployed { pool, deployment, clients: Mutex::default() }
    }

    fn deployment(&self) -> &D {
        self.deployment.as_ref().unwrap()
    }
}

impl<D: Deployment> Drop for Deployed<D> {
    fn drop(&mut self) {
        for client in self.clients.lock().unwrap().drain(..) {
            block_on(client.close());
        }
        let Some(deployment) = self.deployment.take() else { return };
        deployment.proxies().iter().for_each(Proxy::resume);
        // One that a case has failed at may be in any state.
        if !std::thread::panicking() {
            self.pool.lock().unwrap().push(deployment);
        }
    }
}

impl<D: Deployment> Harness for Deployed<D> {
    fn open(&self) -> Arc<dyn Store> {
        let config = RedisConfig::from_url(&self.deployment().url()).unwrap();
        let store: Arc<dyn Store> = Arc::new(block_on(RedisStore::connect(config)).unwrap());
        self.clients.lock().unwrap().push(Arc::clone(&store));
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
        let each = |hurt: fn(&Proxy)| self.deployment().proxies().iter().for_each(hurt);
        match hurt {
            Hurt::Kill(killed) => block_on(killed.close()),
            Hurt::Sever => each(Proxy::sever),
            Hurt::Pause => each(Proxy::pause),
            Hurt::Resume => each(Proxy::resume),
            Hurt::Evict(name) => self.deployment().forget(name.as_str()),
        }
        Ability::Done
    }
}
