//! Locks through a change of master, a moved slot and a dead node.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{claim, fresh, granted, leave, name, named, renew, waiting};
use leasehold_core::{
    Admission, Claim, ClaimRef, Cursor, Ended, Grant, Hint, Left, Renewed, Store, Token,
};
use leasehold_redis::{RedisConfig, RedisStore};
use leasehold_testkit::block_on;
use leasehold_testkit::server::redis::{Cluster, Sentinels};
use leasehold_testkit::server::wait_until;

/// How long anything may take that is awaited here.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(url: &str) -> RedisStore {
    block_on(RedisStore::connect(RedisConfig::from_url(url).unwrap())).unwrap()
}

/// Renews until the servers can answer.
fn renewed(store: &RedisStore, claim: &ClaimRef) -> Renewed {
    let end = Instant::now() + PATIENCE;
    loop {
        match renew(store, claim) {
            Renewed::Unknown(error) => {
                assert!(error.kind().is_transient() && Instant::now() < end, "{error:?}");
            }
            told => return told,
        }
    }
}

fn acquired(store: &RedisStore, claim: &Claim) -> Grant {
    outcome(store, claim).unwrap_or_else(|why| panic!("{claim:?} is gone: {why:?}"))
}

/// Enters, and waits as the queue says, until it is granted or gone.
fn outcome(store: &RedisStore, claim: &Claim) -> Result<Grant, Ended> {
    let end = Instant::now() + PATIENCE;
    let mut cursor = Cursor::default();
    loop {
        assert!(Instant::now() < end, "{claim:?} is never granted");
        let wait = match block_on(store.enter(claim)) {
            Ok(Admission::Granted(grant)) => return Ok(grant),
            Ok(Admission::Gone(why)) => return Err(why),
            Ok(Admission::Waiting(waiting)) => waiting.recheck_in,
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert!(error.kind().is_transient(), "{error:?}");
                continue;
            }
        };
        let hint = store.changed(&claim.resource, Some(claim.id), cursor, wait);
        if let Ok(Hint::Moved(now)) = block_on(hint) {
            cursor = now;
        }
    }
}

fn left(store: &RedisStore, claim: &Claim) -> Left {
    let end = Instant::now() + PATIENCE;
    loop {
        match block_on(store.leave(&claim.to_ref())) {
            Ok(left) => return left,
            Err(error) => assert!(error.kind().is_transient() && Instant::now() < end, "{error:?}"),
        }
    }
}

/// Waits until both replicas have all that the master has.
fn replicated(all: &Sentinels) {
    wait_until("the replicas to have it all", PATIENCE, || {
        let told = all.servers()[all.master()].cli(&["INFO", "replication"]);
        let at = |line: &str, before: &str| -> Option<u64> {
            line.split(before).nth(1)?.split([',', '\r']).next()?.parse().ok()
        };
        let master = told.lines().find_map(|line| at(line, "master_repl_offset:"));
        let behind = told.lines().filter(|line| line.starts_with("slave"));
        let mut offsets = behind.filter_map(|line| at(line, "offset="));
        if offsets.all(|offset| Some(offset) == master) { Ok(()) } else { Err(told) }
    });
}

#[test]
fn what_a_failover_lost_is_told_so_and_the_rest_is_held() {
    let all = Sentinels::start();
    let store = open(&all.url());
    let other = open(&all.url());
    let (kept, lost) = (claim(&fresh("kept")), claim(&fresh("lost")));
    let kept_grant = granted(&store, &kept);
    let queued = claim(&kept.resource);
    waiting(&other, &queued);
    replicated(&all);

    // From here on nothing reaches the replicas.
    let master = &all.servers()[all.master()];
    master.cli(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
    master.cli(&["CLIENT", "KILL", "TYPE", "replica"]);
    wait_until("the replicas to be cut off", PATIENCE, || {
        let told = master.cli(&["INFO", "replication"]);
        if told.contains("connected_slaves:0") { Ok(()) } else { Err(told) }
    });
    let lost_grant = granted(&store, &lost);
    let before = block_on(store.disturbed(Cursor::default()));
    let dead = all.master();
    all.servers()[dead].server().kill9();
    block_on(store.disturbed(before));

    assert!(matches!(renewed(&store, &named(&kept, &kept_grant)), Renewed::Alive { .. }));
    let told = renewed(&store, &named(&lost, &lost_grant));
    assert!(matches!(told, Renewed::Gone(Ended::Failover)), "{told:?}");
    // Death is final, and the next token is higher although the counter was lost too.
    let told = renewed(&store, &named(&lost, &lost_grant));
    assert!(matches!(told, Renewed::Gone(_)), "{told:?}");
    let next = acquired(&other, &claim(&lost.resource));
    assert!(next.token > lost_grant.token);

    // The queue went over too, and the hand-over works at the new master.
    assert_eq!(left(&store, &kept), Left::Released);
    assert!(acquired(&other, &queued).token > kept_grant.token);
}

/// Ends the contenders when the test ends, however it does.
struct Over<'o>(&'o AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn contenders_go_on_after_their_master_was_killed() {
    let all = Sentinels::start();
    let resource = fresh("busy");
    let tokens: Mutex<Vec<Token>> = Mutex::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..6 {
            scope.spawn(|| {
                let store = open(&all.url());
                while !over.load(Ordering::SeqCst) {
                    let mine = Claim { term: Duration::from_secs(5), ..claim(&resource) };
                    // A grant whose answer was lost may run out before it is asked for again.
                    if let Ok(grant) = outcome(&store, &mine) {
                        tokens.lock().unwrap().push(grant.token);
                        left(&store, &mine);
                    }
                }
            });
        }
        let count = || tokens.lock().unwrap().len();
        let grants = |more: usize| {
            let before = count();
            wait_until("more grants", PATIENCE, || {
                let now = count();
                if now >= before + more { Ok(()) } else { Err(format!("{now} after {before}")) }
            });
        };
        grants(200);
        let dead = all.master();
        all.servers()[dead].server().kill9();
        all.wait_for_another_than(dead);
        grants(200);
        // And once more, back and without a death.
        all.servers()[dead].server().start_again();
        wait_until("the dead one to be a replica", PATIENCE, || {
            // Its clients are cut off when it becomes one.
            let role = all.servers()[dead].try_cli(&["ROLE"])?;
            if role.starts_with("slave") { Ok(()) } else { Err(role) }
        });
        all.fail_over();
        grants(200);
    });
    // No token was given twice, whatever was lost.
    let mut tokens = tokens.into_inner().unwrap();
    let count = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), count);
}

#[test]
fn a_slot_moves_under_a_holder_and_a_waiter() {
    let cluster = Cluster::start();
    let holder = open(&cluster.url());
    let waiter = Arc::new(open(&cluster.url()));
    let resource = fresh("moves");
    let slot = cluster.cli(0, &["CLUSTER", "KEYSLOT", resource.as_str()]).parse().unwrap();
    let from = cluster.owner(slot, 0).unwrap();
    let to = (from + 1) % 3;
    let (held, queued) = (claim(&resource), claim(&resource));
    let grant = granted(&holder, &held);
    waiting(&waiter, &queued);
    let route = holder.route(&resource);

    cluster.begin_move(slot, from, to);
    cluster.move_keys(slot, from, to);
    cluster.end_move(slot, from, to);
    assert!(matches!(renewed(&holder, &named(&held, &grant)), Renewed::Alive { .. }));
    assert_ne!(holder.route(&resource), route);

    let next = std::thread::spawn({
        let waiter = Arc::clone(&waiter);
        move || acquired(&waiter, &queued)
    });
    assert_eq!(left(&holder, &held), Left::Released);
    assert!(next.join().unwrap().token > grant.token);
}

#[test]
fn a_dead_node_delays_no_renewal_at_another() {
    let cluster = Cluster::start();
    let store = open(&cluster.url());
    // One lock at each master.
    let at = |master: usize| {
        let mut names = (0..).map(|n| name(&format!("lock-{n}")));
        let there = |name: &leasehold_core::ResourceName| {
            let slot = cluster.cli(0, &["CLUSTER", "KEYSLOT", name.as_str()]);
            cluster.owner(slot.parse().unwrap(), 0) == Ok(master)
        };
        claim(&names.find(there).unwrap())
    };
    let claims: Vec<Claim> = (0..3).map(at).collect();
    let grants: Vec<Grant> = claims.iter().map(|claim| granted(&store, claim)).collect();
    let all: Vec<ClaimRef> = claims.iter().zip(&grants).map(|(c, g)| named(c, g)).collect();
    wait_until("the replica to have it", PATIENCE, || {
        let keys = cluster.cli(3, &["DBSIZE"]);
        if keys == cluster.cli(0, &["DBSIZE"]) && keys != "0" { Ok(()) } else { Err(keys) }
    });
    let before = block_on(store.disturbed(Cursor::default()));
    cluster.nodes()[0].kill9();
    block_on(store.disturbed(before));
    // Nobody has taken its slots over yet, and the others answer at once.
    for healthy in &all[1..] {
        assert!(matches!(renew(&store, healthy), Renewed::Alive { .. }));
    }
    assert!(matches!(renewed(&store, &all[0]), Renewed::Alive { .. }));
    assert_eq!(leave(&store, &claims[1]), Left::Released);
}
