//! What the tests of this store share.
// Each test program uses a part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, ClaimId, ClaimRef, Clock, Cursor, Grant, Hint, Holder, HolderId, Left, Life,
    Mode, Moment, Place, Renewed, ResourceName, Store, Waiting,
};
use leasehold_net::BootClock;
use leasehold_redis::{Layout, RedisConfig, RedisStore};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::redis::Redis;
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, block_on};

/// One server for all tests of a program.
pub(crate) fn shared() -> &'static Redis {
    static SERVER: OnceLock<Redis> = OnceLock::new();
    SERVER.get_or_init(Redis::start)
}

pub(crate) fn config(port: u16, layout: Layout) -> RedisConfig {
    let mut config = RedisConfig::new("127.0.0.1", port);
    config.layout = layout;
    config
}

pub(crate) fn open(server: &Redis, layout: Layout) -> RedisStore {
    block_on(RedisStore::connect(config(server.port(), layout))).unwrap()
}

/// All keys of a resource.
pub(crate) fn keys_of(name: &str) -> Vec<String> {
    let mut keys = vec![name.to_owned()];
    for what in ["s", "t", "w", "p", "h", "e", "r"] {
        if name.contains('{') {
            keys.push(format!("leasehold:{what}={name}"));
        } else {
            keys.push(format!("leasehold:{what}:{{{name}}}"));
        }
    }
    if name.contains('{') {
        keys.push(format!("redisson_lock_token:{name}"));
    } else {
        keys.push(format!("redisson_lock_token:{{{name}}}"));
    }
    keys
}

pub(crate) fn forget(server: &Redis, name: &str) {
    let keys = keys_of(name);
    let mut command = vec!["DEL"];
    command.extend(keys.iter().map(String::as_str));
    server.cli(&command);
}

pub(crate) fn name(text: &str) -> ResourceName {
    ResourceName::new(text).unwrap()
}

/// A fresh id.
pub(crate) fn random() -> u128 {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).unwrap();
    u128::from_ne_bytes(bytes)
}

/// A name that nobody else uses.
pub(crate) fn fresh(what: &str) -> ResourceName {
    name(&format!("{what}-{:032x}", random()))
}

/// A claim that queues, of a holder of its own, with a term of a minute.
pub(crate) fn claim(resource: &ResourceName) -> Claim {
    Claim {
        id: ClaimId::from_bits(random()),
        resource: resource.clone(),
        holder: Holder::new(HolderId::from_bits(random()), "test"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(60),
        life: Life::Term,
        place: Place::Term(Duration::from_secs(60)),
        after_loss: Duration::ZERO,
    }
}

pub(crate) fn granted(store: &RedisStore, claim: &Claim) -> Grant {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn waiting(store: &RedisStore, claim: &Claim) -> Waiting {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Waiting(waiting) => waiting,
        other => panic!("not waiting: {other:?}"),
    }
}

pub(crate) fn leave(store: &RedisStore, claim: &Claim) -> Left {
    block_on(store.leave(&claim.to_ref())).unwrap()
}

pub(crate) fn renew(store: &RedisStore, claim: &ClaimRef) -> Renewed {
    block_on(store.renew(std::slice::from_ref(claim))).pop().unwrap()
}

pub(crate) fn named(claim: &Claim, grant: &Grant) -> ClaimRef {
    ClaimRef { token: Some(grant.token), ..claim.to_ref() }
}

/// A client, and the proxy before it.
type Client = (Arc<dyn Store>, Arc<Proxy>);

/// A world behind proxies, one a client, at one server.
pub(crate) struct Served {
    server: &'static Redis,
    layout: Layout,
    clients: Mutex<Vec<Client>>,
}

impl Served {
    pub(crate) fn at(server: &'static Redis, layout: Layout) -> Served {
        Served { server, layout, clients: Mutex::default() }
    }

    fn each(&self, hurt: impl Fn(&Proxy)) {
        for (_, proxy) in self.clients.lock().unwrap().iter() {
            hurt(proxy);
        }
    }
}

impl Harness for Served {
    fn open(&self) -> Arc<dyn Store> {
        let proxy = Proxy::start(self.server.addr());
        let config = config(proxy.port(), self.layout);
        let store: Arc<dyn Store> = Arc::new(block_on(RedisStore::connect(config)).unwrap());
        self.clients.lock().unwrap().push((Arc::clone(&store), Arc::new(proxy)));
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
                let (_, proxy) = clients.iter().find(|(c, _)| Arc::ptr_eq(c, killed)).unwrap();
                proxy.refuse(true);
                proxy.sever();
            }
            Hurt::Sever => self.each(Proxy::sever),
            Hurt::Pause => self.each(Proxy::pause),
            Hurt::Resume => self.each(Proxy::resume),
            Hurt::Evict(name) => forget(self.server, name.as_str()),
        }
        Ability::Done
    }
}

/// Acquires as the driver does: enter, wait for word, look; under a new id where one was lost.
pub(crate) async fn acquire(store: &RedisStore, claim: &mut Claim) -> Grant<()> {
    let mut since = Cursor::default();
    let mut look = Look::Enter;
    loop {
        let recheck_in = match look {
            Look::Enter => match store.enter(claim).await.unwrap() {
                Admission::Granted(grant) => return grant.map_until(|_| ()),
                Admission::Waiting(waiting) => waiting.recheck_in,
                Admission::Busy(_) => unreachable!("it queues"),
                Admission::Gone(_) => {
                    claim.id = ClaimId::from_bits(random());
                    continue;
                }
            },
            Look::Renew => match store.renew(&[claim.to_ref()]).await.pop().unwrap() {
                Renewed::Granted(grant) => return grant.map_until(|_| ()),
                Renewed::Waiting(waiting) => waiting.recheck_in,
                Renewed::Gone(_) => {
                    claim.id = ClaimId::from_bits(random());
                    look = Look::Enter;
                    continue;
                }
                other => panic!("{other:?}"),
            },
        };
        look = Look::Renew;
        let at_most = recheck_in.min(Duration::from_secs(1));
        match store.changed(&claim.resource, Some(claim.id), since, at_most).await.unwrap() {
            Hint::Moved(cursor) => since = cursor,
            Hint::Granted(pushed) => return pushed.grant.map_until(|_| ()),
        }
    }
}

enum Look {
    Enter,
    Renew,
}
