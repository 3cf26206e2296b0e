//! What survives when members are killed, stopped, cut off or set to another time.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{
    Behind, claim, config, durable, fresh, granted, is_busy, leave, named, open, ports, renew,
    start, start_with, until_granted,
};
use leasehold_core::{Admission, Applied, Ended, ErrorKind, Left, Renewed, Store};
use leasehold_redlock::RedlockStore;
use leasehold_testkit::block_on;
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::FakeTime;
use leasehold_testkit::server::redis::{Options, Redis};

const TERM: Duration = Duration::from_secs(20);

fn is_alive(store: &RedlockStore, claim: &leasehold_core::ClaimRef) -> bool {
    matches!(renew(store, claim), Renewed::Alive { .. })
}

/// A whole turn while a minority is in this state: another is kept out, tokens rise.
fn goes_on(a: &RedlockStore, b: &RedlockStore, what: &str) {
    let name = fresh(what);
    let first = claim(&name, TERM);
    let grant = granted(a, &first);
    assert!(is_busy(b, &claim(&name, TERM)), "{what}: two hold");
    assert!(is_alive(a, &named(&first, &grant)), "{what}: not extended");
    assert_eq!(leave(a, &first), Left::Released, "{what}");
    let next = until_granted(b, &claim(&name, TERM), TERM);
    assert!(next.token > grant.token, "{what}");
}

#[test]
fn a_minority_may_be_killed_stopped_or_cut_off() {
    let servers = start();
    let (a, b) = (Behind::of(&servers), Behind::of(&servers));
    let each = |hurt: fn(&Proxy)| {
        a.proxies[3..].iter().chain(&b.proxies[3..]).for_each(hurt);
    };
    goes_on(&a.store, &b.store, "well");
    each(Proxy::pause);
    goes_on(&a.store, &b.store, "partitioned");
    each(Proxy::resume);
    servers[3..].iter().for_each(|s| s.server().stop());
    goes_on(&a.store, &b.store, "stopped");
    servers[3..].iter().for_each(|s| s.server().cont());
    each(|proxy| proxy.delay(Duration::from_millis(200)));
    goes_on(&a.store, &b.store, "slow");
    each(|proxy| proxy.delay(Duration::ZERO));
    servers[3..].iter().for_each(|s| s.server().kill9());
    goes_on(&a.store, &b.store, "killed");
}

#[test]
fn without_a_majority_nothing_is_granted_and_the_answer_comes_in_time() {
    let servers = start();
    let a = Behind::of(&servers);
    a.proxies[2..].iter().for_each(Proxy::pause);
    let began = Instant::now();
    let error = block_on(a.store.enter(&claim(&fresh("lost"), TERM))).unwrap_err();
    assert!(error.kind().is_transient(), "{error}");
    assert_eq!(error.applied(), Applied::Maybe);
    assert!(began.elapsed() < TERM, "it took longer than the term");
    for proxy in &a.proxies[2..] {
        assert!(error.to_string().contains(&proxy.port().to_string()), "who is away: {error}");
    }
}

#[test]
fn the_clock_of_one_member_may_step() {
    let time = Arc::new(FakeTime::new());
    let mut servers = start();
    servers[0] = Redis::with(Options { time: Some(Arc::clone(&time)), ..durable() });
    let (a, b) = (open(&servers), open(&servers));
    for step in [3600, -3600] {
        let name = fresh("step");
        let first = claim(&name, TERM);
        let grant = granted(&a, &first);
        time.step(step);
        assert!(is_busy(&b, &claim(&name, TERM)), "a step of {step} s let another in");
        assert!(is_alive(&a, &named(&first, &grant)), "a step of {step} s ended it");
        leave(&a, &first);
        let next = until_granted(&b, &claim(&name, TERM), TERM);
        assert!(next.token > grant.token, "after a step of {step} s");
        time.step(0);
    }
}

#[test]
fn the_clocks_of_all_members_may_step() {
    let time = Arc::new(FakeTime::new());
    let servers = start_with(|| Options { time: Some(Arc::clone(&time)), ..durable() });
    let (a, b) = (open(&servers), open(&servers));
    // Back: what is held lasts longer, and tokens rise beyond the clock.
    let name = fresh("back");
    let first = claim(&name, TERM);
    let grant = granted(&a, &first);
    time.step(-3600);
    assert!(is_busy(&b, &claim(&name, TERM)), "a step back let another in");
    assert!(is_alive(&a, &named(&first, &grant)), "a step back ended it");
    assert_eq!(leave(&a, &first), Left::Released);
    let next = until_granted(&b, &claim(&name, TERM), TERM);
    assert!(next.token > grant.token, "tokens went back with the clocks");
    // Forward: all terms are over at once. The holder is told, and the token after it is higher.
    let name = fresh("forward");
    let first = claim(&name, TERM);
    let grant = granted(&a, &first);
    time.step(3600);
    let next = until_granted(&b, &claim(&name, TERM), TERM);
    assert!(next.token > grant.token);
    let told = renew(&a, &named(&first, &grant));
    assert!(matches!(told, Renewed::Gone(Ended::Clock | Ended::Expired)), "{told:?}");
}

#[test]
fn an_answer_that_comes_after_a_pause_as_long_as_the_term_grants_nothing() {
    let servers = start();
    let a = Behind::of(&servers);
    let b = open(&servers);
    let name = fresh("late");
    // The majority is there in time; what it says comes when the term is over.
    let asked = claim(&name, Duration::from_secs(1));
    a.proxies.iter().for_each(|proxy| proxy.pause_to_client(true));
    let answer = std::thread::scope(|scope| {
        let waits = scope.spawn(|| block_on(a.store.enter(&asked)));
        let taken = |server: &Redis| server.cli(&["EXISTS", name.as_str()]) == "1";
        let end = Instant::now() + TERM;
        while !servers.iter().all(taken) && !waits.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(1100));
        a.proxies.iter().for_each(|proxy| proxy.pause_to_client(false));
        waits.join().unwrap()
    });
    assert!(!matches!(answer, Ok(Admission::Granted(_))), "{answer:?}");
    // And nothing of it is left: neither where it was taken nor where its end was asked for.
    until_granted(&b, &claim(&name, TERM), TERM);
}

#[test]
fn a_member_restarted_without_its_data_counts_in_no_majority_for_a_while() {
    let servers = start();
    let (a, b) = (open(&servers), open(&servers));
    let name = fresh("forgets");
    servers[3..].iter().for_each(|s| s.server().kill9());
    let first = claim(&name, TERM);
    let grant = granted(&a, &first);
    servers[3..].iter().for_each(|s| s.server().restart());
    servers[2].server().restart_empty();
    // Two that were away and one that has forgotten would be a majority.
    for _ in 0..20 {
        let answer = block_on(b.enter(&claim(&name, TERM)));
        assert!(!matches!(answer, Ok(Admission::Granted(_))), "{answer:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(grant);
}

#[test]
fn members_that_cannot_be_counted_are_refused_by_name() {
    let servers = start();
    let refused = |ports: Vec<u16>| block_on(RedlockStore::connect(config(ports))).unwrap_err();
    let second = Proxy::start(servers[0].addr());
    let mut twice = ports(&servers);
    twice[4] = second.port();
    let error = refused(twice);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("one server"), "{error}");
    let replica =
        Redis::with(Options { replica_of: Some(servers[0].port()), ..Options::default() });
    let mut with_replica = ports(&servers);
    with_replica[4] = replica.port();
    let error = refused(with_replica);
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
}
