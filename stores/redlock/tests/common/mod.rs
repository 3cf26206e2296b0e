//! What the tests of this store share.
// Each test program uses a part of it.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold_core::{
    Admission, Claim, ClaimId, ClaimRef, Clock, Grant, Holder, HolderId, Left, Life, Mode, Moment,
    Place, Renewed, ResourceName, Store,
};
use leasehold_net::{BootClock, HostPort};
use leasehold_redlock::{Layout, RedlockConfig, RedlockStore};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::redis::{Options, Redis};
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, block_on};

pub(crate) const MEMBERS: usize = 5;

/// Servers that keep every write, so that they count from the first moment on.
pub(crate) fn durable() -> Options {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    Options { args: args.map(str::to_owned).into(), ..Options::default() }
}

pub(crate) fn start() -> Vec<Redis> {
    start_with(durable)
}

pub(crate) fn start_with(options: impl Fn() -> Options) -> Vec<Redis> {
    (0..MEMBERS).map(|_| Redis::with(options())).collect()
}

/// Five servers for all tests of a program.
pub(crate) fn shared() -> &'static [Redis] {
    static SERVERS: OnceLock<Vec<Redis>> = OnceLock::new();
    SERVERS.get_or_init(start)
}

pub(crate) fn config(ports: impl IntoIterator<Item = u16>) -> RedlockConfig {
    let member = |port| HostPort { host: "127.0.0.1".into(), port: Some(port) };
    RedlockConfig::new(ports.into_iter().map(member).collect())
}

pub(crate) fn ports(servers: &[Redis]) -> Vec<u16> {
    servers.iter().map(Redis::port).collect()
}

pub(crate) fn open(servers: &[Redis]) -> RedlockStore {
    block_on(RedlockStore::connect(config(ports(servers)))).unwrap()
}

/// All keys of a resource at a member.
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

/// A fresh id.
pub(crate) fn random() -> u128 {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).unwrap();
    u128::from_ne_bytes(bytes)
}

/// A name that nobody else uses.
pub(crate) fn fresh(what: &str) -> ResourceName {
    ResourceName::new(&format!("{what}-{:032x}", random())).unwrap()
}

/// A claim of a holder of its own, with this term.
pub(crate) fn claim(resource: &ResourceName, term: Duration) -> Claim {
    Claim {
        id: ClaimId::from_bits(random()),
        resource: resource.clone(),
        holder: Holder::new(HolderId::from_bits(random()), "test"),
        mode: Mode::Exclusive,
        term,
        life: Life::Term,
        place: Place::No,
        after_loss: Duration::ZERO,
    }
}

pub(crate) fn granted(store: &RedlockStore, claim: &Claim) -> Grant {
    match block_on(store.enter(claim)).unwrap() {
        Admission::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn is_busy(store: &RedlockStore, claim: &Claim) -> bool {
    match block_on(store.enter(claim)) {
        Ok(Admission::Busy(_)) => true,
        Ok(Admission::Granted(_)) => false,
        other => panic!("neither granted nor busy: {other:?}"),
    }
}

/// Claims under new ids until granted.
pub(crate) fn until_granted(store: &RedlockStore, claim: &Claim, within: Duration) -> Grant {
    let end = BootClock.now() + within;
    loop {
        let attempt = Claim { id: ClaimId::from_bits(random()), ..claim.clone() };
        match block_on(store.enter(&attempt)) {
            Ok(Admission::Granted(grant)) => return grant,
            Ok(_) => {}
            Err(error) if error.kind().is_transient() => {}
            Err(error) => panic!("{error}"),
        }
        assert!(BootClock.now() < end, "waited {within:?} in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn leave(store: &RedlockStore, claim: &Claim) -> Left {
    block_on(store.leave(&claim.to_ref())).unwrap()
}

pub(crate) fn renew(store: &RedlockStore, claim: &ClaimRef) -> Renewed {
    block_on(store.renew(std::slice::from_ref(claim))).pop().unwrap()
}

pub(crate) fn named(claim: &Claim, grant: &Grant) -> ClaimRef {
    ClaimRef { token: Some(grant.token), ..claim.to_ref() }
}

/// Who holds the plain lock at each member.
pub(crate) fn owners(servers: &[Redis], name: &ResourceName) -> Vec<String> {
    servers.iter().map(|s| s.try_cli(&["GET", name.as_str()]).unwrap_or_default()).collect()
}

/// A client with a proxy before each member.
pub(crate) struct Behind {
    pub(crate) proxies: Vec<Proxy>,
    pub(crate) store: RedlockStore,
}

impl Behind {
    pub(crate) fn of(servers: &[Redis]) -> Behind {
        Behind::with(servers, |_| {})
    }

    pub(crate) fn with(servers: &[Redis], change: impl FnOnce(&mut RedlockConfig)) -> Behind {
        let proxies: Vec<Proxy> = servers.iter().map(|s| Proxy::start(s.addr())).collect();
        let mut config = config(proxies.iter().map(Proxy::port));
        change(&mut config);
        let store = block_on(RedlockStore::connect(config)).unwrap();
        Behind { proxies, store }
    }
}

type Client = (Arc<dyn Store>, Arc<Vec<Proxy>>);

/// A world of five servers, behind proxies of each client.
pub(crate) struct World {
    servers: &'static [Redis],
    layout: Layout,
    clients: Mutex<Vec<Client>>,
}

impl World {
    pub(crate) fn new(layout: Layout) -> World {
        World::over(shared(), layout)
    }

    pub(crate) fn over(servers: &'static [Redis], layout: Layout) -> World {
        World { servers, layout, clients: Mutex::default() }
    }

    fn each(&self, hurt: impl Fn(&Proxy)) {
        for (_, proxies) in self.clients.lock().unwrap().iter() {
            proxies.iter().for_each(&hurt);
        }
    }
}

impl Harness for World {
    fn open(&self) -> Arc<dyn Store> {
        let behind = Behind::with(self.servers, |config| config.layout = self.layout);
        let store: Arc<dyn Store> = Arc::new(behind.store);
        self.clients.lock().unwrap().push((Arc::clone(&store), Arc::new(behind.proxies)));
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
                let (_, proxies) = clients.iter().find(|(c, _)| Arc::ptr_eq(c, killed)).unwrap();
                for proxy in proxies.iter() {
                    proxy.refuse(true);
                    proxy.sever();
                }
            }
            Hurt::Sever => self.each(Proxy::sever),
            Hurt::Pause => self.each(Proxy::pause),
            Hurt::Resume => self.each(Proxy::resume),
            Hurt::Evict(name) => self.servers.iter().for_each(|s| forget(s, name.as_str())),
        }
        Ability::Done
    }
}
