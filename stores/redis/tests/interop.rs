//! One lock with Redisson and with redis-py, in both directions.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leasehold_core::{
    Admission, Claim, Cursor, Ended, Hint, Mode, Place, Renewed, ResourceName, Store,
};
use leasehold_redis::{Layout, RedisStore};
use leasehold_testkit::block_on;
use leasehold_testkit::interop::Foreign;
use leasehold_testkit::server::redis::Redis;
use leasehold_testkit::server::wait_until;

/// Longer than any test: whoever is woken within one was not woken by a timer.
const LONG: Duration = Duration::from_secs(600);
const PATIENCE: Duration = Duration::from_secs(50);

struct Ground {
    server: Redis,
    store: RedisStore,
}

impl Ground {
    fn new(layout: Layout) -> Ground {
        let server = Redis::start();
        let store = common::open(&server, layout);
        Ground { server, store }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port())
    }

    fn java(&self) -> Foreign {
        Foreign::redisson(&self.url(), &[])
    }

    fn claim(&self, name: &ResourceName) -> Claim {
        Claim { term: LONG, ..common::claim(name) }
    }

    /// Whether a try is refused because another holds.
    fn is_busy(&self, name: &ResourceName) -> bool {
        let attempt = Claim { place: Place::No, ..self.claim(name) };
        match block_on(self.store.enter(&attempt)).unwrap() {
            Admission::Busy(_) => true,
            Admission::Granted(_) => {
                common::leave(&self.store, &attempt);
                false
            }
            other => panic!("{other:?}"),
        }
    }

    /// Until a client that is not ours listens for the lock.
    fn until_heard(&self, name: &ResourceName) {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        wait_until("a foreign waiter listens", PATIENCE, || {
            let told = self.server.cli(&["PUBSUB", "NUMSUB", &channel]);
            if told.ends_with("\n0") { Err(told) } else { Ok(()) }
        });
    }

    /// Waits for a claim that is queued, by word alone.
    fn until_told(&self, claim: &Claim) {
        let mut since = Cursor::default();
        loop {
            let asked = Instant::now();
            let heard = self.store.changed(&claim.resource, Some(claim.id), since, PATIENCE);
            match block_on(heard).unwrap() {
                Hint::Granted(_) => return,
                Hint::Moved(cursor) => since = cursor,
            }
            assert!(asked.elapsed() < PATIENCE, "nobody told it");
            if let Renewed::Granted(_) = common::renew(&self.store, &claim.to_ref()) {
                return;
            }
        }
    }
}

#[test]
fn redisson_and_we_exclude_each_other() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    for (n, kind) in ["", "fenced."].iter().enumerate() {
        let name = common::fresh(&format!("both{n}"));
        assert_eq!(java.call("a", &format!("{kind}trylock {name} 0 0")).text, "locked");
        assert!(ground.is_busy(&name));
        for mode in [Mode::Shared, Mode::Permits { count: 1, limit: 2 }] {
            let claim = Claim { mode, place: Place::No, ..ground.claim(&name) };
            let answer = block_on(ground.store.enter(&claim)).unwrap();
            assert!(matches!(answer, Admission::Busy(_)), "{answer:?}");
        }
        java.call("a", &format!("{kind}unlock {name}"));
        assert!(!ground.is_busy(&name));

        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, limit: 2 }] {
            let claim = Claim { mode, ..ground.claim(&name) };
            common::granted(&ground.store, &claim);
            let refused = java.call("a", &format!("{kind}trylock {name} 0 0")).text;
            assert_eq!(refused, "refused", "{mode:?}");
            common::leave(&ground.store, &claim);
            assert_eq!(java.call("a", &format!("{kind}trylock {name} 0 0")).text, "locked");
            java.call("a", &format!("{kind}unlock {name}"));
        }
    }
}

#[test]
fn a_foreign_holder_is_named_and_shown() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("shown");
    let id = java.call("a", "id").text;
    java.call("a", &format!("lock {name} 600000"));
    let attempt = Claim { place: Place::No, ..ground.claim(&name) };
    let answer = block_on(ground.store.enter(&attempt)).unwrap();
    let Admission::Busy(busy) = answer else { panic!("{answer:?}") };
    assert_eq!(busy.holder.unwrap().label, id);
    assert!(busy.free_in.is_some_and(|left| left <= LONG && left > LONG / 2));
    let queue = block_on(ground.store.inspect(&name)).unwrap();
    assert_eq!(queue.holders().map(|e| e.holder.label().to_owned()).collect::<Vec<_>>(), [id]);
}

#[test]
fn our_release_wakes_redissons_waiter_at_once() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("wakes-java");
    let held = ground.claim(&name);
    common::granted(&ground.store, &held);
    let locked = java.send("a", &format!("lock {name}"));
    ground.until_heard(&name);
    assert!(java.answered(locked).is_none());
    common::leave(&ground.store, &held);
    // Within a minute: its own timer is set to our ten.
    assert_eq!(java.result(locked).text, "locked");
}

#[test]
fn redissons_release_wakes_our_waiter_at_once() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("wakes-us");
    java.call("a", &format!("lock {name} 600000"));
    let (first, second) = (ground.claim(&name), ground.claim(&name));
    common::waiting(&ground.store, &first);
    common::waiting(&ground.store, &second);
    wait_until("the first in line listens", PATIENCE, || match ground.store.subscriptions() {
        2 => Ok(()),
        other => Err(format!("{other} channels")),
    });
    java.call("a", &format!("unlock {name}"));
    ground.until_told(&first);
    common::leave(&ground.store, &first);
    ground.until_told(&second);
    common::leave(&ground.store, &second);
    wait_until("no channel is left", PATIENCE, || {
        match ground.server.cli(&["PUBSUB", "CHANNELS"]).as_str() {
            "" => Ok(()),
            left => Err(left.to_owned()),
        }
    });
}

#[test]
fn counts_of_reentry_survive_on_both_sides() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("counts");
    java.call("a", &format!("lock {name}"));
    java.call("a", &format!("lock {name}"));
    let waiter = ground.claim(&name);
    common::waiting(&ground.store, &waiter);
    assert_eq!(java.call("a", &format!("held {name}")).text, "held true 2");
    java.call("a", &format!("unlock {name}"));
    assert!(ground.is_busy(&name));
    assert!(matches!(common::renew(&ground.store, &waiter.to_ref()), Renewed::Waiting(_)));
    java.call("a", &format!("unlock {name}"));
    ground.until_told(&waiter);

    let inner = Claim { id: ground.claim(&name).id, ..waiter.clone() };
    common::granted(&ground.store, &inner);
    assert_eq!(ground.server.cli(&["HVALS", name.as_str()]), "2");
    common::leave(&ground.store, &waiter);
    assert_eq!(ground.server.cli(&["HVALS", name.as_str()]), "1");
    assert_eq!(java.call("a", &format!("trylock {name} 0 0")).text, "refused");
    common::leave(&ground.store, &inner);
    assert_eq!(java.call("a", &format!("trylock {name} 0 0")).text, "locked");
}

#[test]
fn tokens_rise_from_one_side_to_the_other() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("tokens");
    let mut newest = 0;
    for _ in 0..3 {
        let told = java.call("a", &format!("fenced {name}")).text;
        let token: u64 = told.strip_prefix("token ").unwrap().parse().unwrap();
        assert!(token > newest, "{token} after {newest}");
        java.call("a", &format!("fenced.unlock {name}"));
        let claim = ground.claim(&name);
        let ours = common::granted(&ground.store, &claim).token.get();
        assert!(ours > token, "{ours} after {token}");
        newest = ours;
        common::leave(&ground.store, &claim);
    }
    assert_eq!(ground.server.cli(&["TTL", &format!("redisson_lock_token:{{{name}}}")]), "-1");
}

#[test]
fn what_redisson_forces_open_its_holder_is_told() {
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("forced");
    let held = ground.claim(&name);
    let grant = common::granted(&ground.store, &held);
    assert_eq!(java.call("a", &format!("forceunlock {name}")).text, "forced true");
    java.call("a", &format!("lock {name}"));
    let answer = common::renew(&ground.store, &common::named(&held, &grant));
    assert!(matches!(answer, Renewed::Gone(Ended::Evicted)), "{answer:?}");
    common::leave(&ground.store, &held);
    assert_eq!(java.call("a", &format!("held {name}")).text, "held true 1");
}

/// A waiter of Redisson's among many of ours that saturate the lock gets it again and again.
#[test]
fn a_waiter_of_redissons_does_not_starve_among_ours() {
    const ROUNDS: u32 = 12;
    let ground = Ground::new(Layout::Redisson);
    let mut java = ground.java();
    let name = common::fresh("fair");
    let (is_over, ours) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let stores: Vec<Arc<RedisStore>> =
        (0..4).map(|_| Arc::new(common::open(&ground.server, Layout::Redisson))).collect();
    let threads: Vec<_> = (0..32)
        .map(|n: usize| {
            let (store, name) = (Arc::clone(&stores[n % 4]), name.clone());
            let (is_over, ours) = (Arc::clone(&is_over), Arc::clone(&ours));
            thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    let mut claim = Claim { term: LONG, ..common::claim(&name) };
                    block_on(common::acquire(&store, &mut claim));
                    ours.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(1));
                    common::leave(&store, &claim);
                }
            })
        })
        .collect();
    wait_until("ours saturate the lock", PATIENCE, || {
        if ours.load(Ordering::SeqCst) > 64 { Ok(()) } else { Err("not yet".into()) }
    });
    let before = ours.load(Ordering::SeqCst);
    java.call("a", &format!("cycle {name} {ROUNDS} 1"));
    let between = ours.load(Ordering::SeqCst) - before;
    is_over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert!(between <= ROUNDS * 64, "{between} of ours for {ROUNDS} of Redisson's");
    assert!(between >= ROUNDS, "and ours did not stand still: {between}");
}

#[test]
fn redis_py_and_we_exclude_each_other() {
    let ground = Ground::new(Layout::Plain);
    let mut python = Foreign::redis_py(&ground.url(), &[]);
    let name = common::fresh("py");
    assert_eq!(python.call("a", &format!("trylock {name} 600000")).text, "locked");
    assert!(ground.is_busy(&name));
    let waiter = ground.claim(&name);
    common::waiting(&ground.store, &waiter);
    python.call("a", &format!("unlock {name}"));
    // A plain lock tells nobody: the first in line looks by itself.
    let mut again = waiter.clone();
    block_on(common::acquire(&ground.store, &mut again));
    assert_eq!(again.id, waiter.id);
    assert_eq!(python.call("a", &format!("trylock {name} 1000")).text, "refused");
    let locked = python.send("b", &format!("lock {name} 1000"));
    common::leave(&ground.store, &waiter);
    assert_eq!(python.result(locked).text, "locked");
}
