//! What the tests share: servers of each release, and clients behind proxies of their own.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use leasehold_core::{
    Claim, Clock as _, Holder, HolderId, Ids, Life, Mode, Moment, Place, ResourceName, Store,
};
use leasehold_net::{BootClock, HostPort};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::wait_until;
use leasehold_testkit::server::zookeeper::{Options, Release, Zookeeper};
use leasehold_testkit::{Ability, Harness, Hurt, LocalFuture, block_on};
use leasehold_zookeeper::{Layout, ZookeeperConfig, ZookeeperStore};

/// The session timeout of the suite: what ends with a session ends within the suite's patience.
pub const SESSION: Duration = Duration::from_secs(4);

/// One server a release and test program.
pub fn server(release: Release) -> &'static Zookeeper {
    static SYSTEM: OnceLock<Zookeeper> = OnceLock::new();
    static NEWEST: OnceLock<Zookeeper> = OnceLock::new();
    let shared = match release {
        Release::System => &SYSTEM,
        Release::Newest => &NEWEST,
    };
    shared.get_or_init(|| Zookeeper::with(Options { release, ..Options::default() }))
}

/// The store at this address, below a root of its own.
pub fn config(addr: SocketAddr, root: &str) -> ZookeeperConfig {
    let mut config = ZookeeperConfig::new("127.0.0.1");
    config.hosts = vec![HostPort { host: addr.ip().to_string(), port: Some(addr.port()) }];
    config.root = format!("/{root}");
    config.session = SESSION;
    config.connect_within = Duration::from_secs(30);
    config
}

pub fn connect(config: ZookeeperConfig) -> ZookeeperStore {
    block_on(ZookeeperStore::connect(config)).unwrap()
}

/// A root that no other test uses.
pub fn root() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn now() -> Moment {
    BootClock.now()
}

/// A claim of a new holder that queues.
pub fn claim(resource: &str) -> Claim {
    static IDS: Mutex<Option<Ids>> = Mutex::new(None);
    let mut ids = IDS.lock().unwrap();
    let ids = ids.get_or_insert_with(|| {
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).unwrap();
        Ids::seeded(u128::from_ne_bytes(seed))
    });
    let holder = HolderId::from_bits(ids.claim().bits());
    Claim {
        id: ids.claim(),
        resource: ResourceName::new(resource).unwrap(),
        holder: Holder::new(holder, "a test"),
        mode: Mode::Exclusive,
        term: Duration::from_secs(3),
        life: Life::Process,
        place: Place::Term(Duration::from_secs(3600)),
        after_loss: Duration::ZERO,
    }
}

/// The harness of the suite: a root of its own, each client behind a proxy of its own.
pub struct World {
    server: &'static Zookeeper,
    layout: Layout,
    root: String,
    clients: Mutex<Vec<(Arc<dyn Store>, Proxy)>>,
}

impl World {
    pub fn new(release: Release, layout: Layout) -> World {
        let server = server(release);
        World { server, layout, root: root(), clients: Mutex::default() }
    }

    fn each(&self, hurt: impl Fn(&Proxy)) -> Ability {
        self.clients.lock().unwrap().iter().for_each(|(_, proxy)| hurt(proxy));
        Ability::Done
    }
}

impl Harness for World {
    fn open(&self) -> Arc<dyn Store> {
        let proxy = Proxy::start(self.server.addr());
        let mut config = config(proxy.addr(), &self.root);
        config.layout = self.layout;
        let store: Arc<dyn Store> = Arc::new(connect(config));
        self.clients.lock().unwrap().push((Arc::clone(&store), proxy));
        store
    }

    fn now(&self) -> Moment {
        now()
    }

    fn pass(&self, span: Duration) {
        std::thread::sleep(span);
    }

    fn run(&self, case: LocalFuture<'_>) {
        block_on(case);
    }

    fn hurt(&self, hurt: Hurt<'_>) -> Ability {
        match hurt {
            Hurt::Sever => self.each(Proxy::sever),
            Hurt::Pause => self.each(Proxy::pause),
            Hurt::Resume => self.each(Proxy::resume),
            Hurt::Kill(killed) => {
                let clients = self.clients.lock().unwrap();
                let (_, proxy) =
                    clients.iter().find(|(client, _)| Arc::ptr_eq(client, killed)).unwrap();
                proxy.refuse(true);
                proxy.sever();
                Ability::Done
            }
            Hurt::Evict(name) => {
                evict(self.server.addr(), &self.root, name.as_str());
                Ability::Done
            }
        }
    }
}

/// As an operator's hand would, by another client library.
pub fn evict(addr: SocketAddr, root: &str, name: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = zookeeper_client::Client::connect(&addr.to_string()).await.unwrap();
        for path in [format!("/{root}/{name}"), format!("/{root}/.leasehold/{name}")] {
            for child in client.list_children(&path).await.unwrap() {
                client.delete(&format!("{path}/{child}"), None).await.unwrap();
            }
            client.delete(&path, None).await.unwrap();
        }
    });
}

/// What ZooKeeper's own shell prints.
pub fn shell(addr: SocketAddr, words: &[&str]) -> String {
    let output = std::process::Command::new("java")
        .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg("/usr/share/java/zookeeper.jar")
        .args(["org.apache.zookeeper.ZooKeeperMain", "-server", &addr.to_string()])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Enters again and again, as a client does that is not told.
pub fn until_granted(store: &ZookeeperStore, claim: &Claim) -> leasehold_core::Grant {
    let mut found = None;
    wait_until("granted", Duration::from_secs(60), || match block_on(store.enter(claim)) {
        Ok(leasehold_core::Admission::Granted(grant)) => {
            found = Some(grant);
            Ok(())
        }
        Ok(other) => Err(format!("{other:?}")),
        Err(error) if error.kind().is_transient() => Err(error.to_string()),
        Err(error) => panic!("{error}"),
    });
    found.unwrap()
}

/// Enters, and must be granted at once.
pub fn granted(store: &ZookeeperStore, claim: &Claim) -> leasehold_core::Grant {
    match block_on(store.enter(claim)).unwrap() {
        leasehold_core::Admission::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// Enters, and must wait.
pub fn waits(store: &ZookeeperStore, claim: &Claim) -> leasehold_core::Waiting {
    match block_on(store.enter(claim)).unwrap() {
        leasehold_core::Admission::Waiting(waiting) => waiting,
        other => panic!("{other:?}"),
    }
}

pub fn renew(store: &ZookeeperStore, claim: &Claim) -> leasehold_core::Renewed {
    block_on(store.renew(&[claim.to_ref()])).pop().unwrap()
}

pub fn leaves(store: &ZookeeperStore, claim: &Claim) {
    assert_eq!(block_on(store.leave(&claim.to_ref())).unwrap(), leasehold_core::Left::Released);
}

/// A client as users have it, driver and all.
pub fn client(config: ZookeeperConfig) -> leasehold::Client {
    let store: Arc<dyn Store> = Arc::new(connect(config));
    leasehold::Client::new(store, leasehold::Options::default()).unwrap()
}

/// Gives a lease back, which has to be held to the end.
pub fn released(lease: leasehold::Lease) {
    let release = block_on(lease.release());
    assert!(matches!(release, leasehold::Release::Released), "{release:?}");
}
