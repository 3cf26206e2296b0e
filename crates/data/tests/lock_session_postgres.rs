//! Session-scoped advisory locks of PostgreSQL: told when they are lost, and refused where they would
//! exclude nobody.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "tokio-postgres-0_7")]

mod lock_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold_data::lock::session::{Guard, Lost, Postgres, Release};
use leasehold_data::lock::{Error, Key, Wait, advisory};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::pgbouncer::PgBouncer;
use leasehold_testkit::server::postgres::{Options, Postgres as Server};
use lock_common::{LONG, fresh, postgres, postgres_config, until};
use tokio_postgres::NoTls;

const WAIT: Wait = Wait::AtMost(LONG);

fn locks(port: u16) -> Postgres<NoTls> {
    Postgres::new(postgres_config(port), NoTls)
}

fn key(what: &str) -> Key {
    Key::new(&fresh(what)).unwrap()
}

/// The sessions that have it, as the server sees it.
fn holders(server: &Server, key: &Key) -> Vec<String> {
    let pids = format!(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 \
         AND classid::int8 << 32 | objid::int8 = {}",
        key.number()
    );
    server.sql(&pids).lines().map(str::to_owned).collect()
}

async fn free(key: &Key) {
    until("free", async || holders(postgres(), key).is_empty()).await;
}

async fn busy(key: &Key) -> bool {
    matches!(locks(postgres().port()).lock(key, Wait::No).await, Err(Error::Busy { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holds_it_at_a_time() {
    let key = key("one");
    let (inside, entered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (key, inside, entered) = (key.clone(), Arc::clone(&inside), Arc::clone(&entered));
            tokio::spawn(async move {
                for _ in 0..4 {
                    let guard = locks(postgres().port()).lock(&key, WAIT).await.unwrap();
                    assert!(guard.is_held());
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    entered.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1, "two are inside");
                    assert_eq!(guard.release().await, Release::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(entered.load(Ordering::SeqCst), 24);
    assert!(holders(postgres(), &key).is_empty());
}

#[tokio::test]
async fn it_is_busy_waited_for_shared_and_freed() {
    let key = key("busy");
    let locks = locks(postgres().port());
    let guard = locks.lock(&key, Wait::No).await.unwrap();
    assert_eq!(guard.name(), key.shown());
    assert!(busy(&key).await);
    let short = Wait::AtMost(Duration::from_millis(600));
    let told = locks.lock_shared(&key, short).await.unwrap_err();
    assert!(matches!(told, Error::WaitOver { .. }), "{told:?}");
    // Nothing of the refused is left, and the transaction's locks are of the same kind.
    assert_eq!(holders(postgres(), &key).len(), 1);
    let mut client = lock_common::tokio_postgres_client(postgres().port()).await;
    let mut tx = client.transaction().await.unwrap();
    let told = advisory::lock(&mut tx, &key, Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::Busy { .. }), "{told:?}");
    // Dropped, its connection is closed.
    drop(guard);
    advisory::lock(&mut tx, &key, WAIT).await.unwrap();
    assert!(busy(&key).await);
    tx.commit().await.unwrap();
    let one = locks.lock_shared(&key, WAIT).await.unwrap();
    let two = locks.lock_shared(&key, Wait::No).await.unwrap();
    assert!(busy(&key).await);
    assert_eq!(one.release().await, Release::Released);
    assert_eq!(two.release().await, Release::Released);
    assert!(!busy(&key).await);
}

#[tokio::test]
async fn a_dropped_wait_leaves_nothing() {
    let key = key("dropped");
    let locks = locks(postgres().port());
    let guard = locks.lock(&key, Wait::No).await.unwrap();
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold lock {}'",
        key.shown()
    );
    let waits = locks.lock(&key, WAIT);
    tokio::select! {
        told = waits => panic!("taken too early: {told:?}"),
        () = until("waits", async || postgres().sql(&waiting) == "2") => {}
    }
    until("its session is gone", async || postgres().sql(&waiting) == "1").await;
    assert_eq!(guard.release().await, Release::Released);
    free(&key).await;
}

/// Told by the closing socket: no question is due for a quarter of an hour.
#[tokio::test]
async fn a_killed_session_is_told_at_once() {
    let key = key("killed");
    let locks = locks(postgres().port()).term(Duration::from_secs(3600)).unwrap();
    let guard = locks.lock(&key, Wait::No).await.unwrap();
    let holder = holders(postgres(), &key).remove(0);
    let mut dropped = DropFlag::default();
    let told = {
        let work = dropped.during(std::future::pending::<()>());
        let kills = async {
            postgres().sql(&format!("SELECT pg_terminate_backend({holder})"));
            guard.lost().await
        };
        let (told, lost) = tokio::join!(guard.run(work), kills);
        assert_eq!(told.unwrap_err(), lost);
        lost
    };
    assert!(dropped.is_set(), "the work was dropped");
    assert!(
        matches!(&told, Lost::Closed { why } if why.contains("57P01") || why.contains("terminat")),
        "{told:?}"
    );
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Release::AlreadyLost(Lost::Closed { .. })));
    assert!(!busy(&key).await);
}

#[derive(Default)]
struct DropFlag(Arc<std::sync::atomic::AtomicBool>);

impl DropFlag {
    /// Work that tells when it is dropped.
    fn during<T>(&mut self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        struct Set(Arc<std::sync::atomic::AtomicBool>);
        impl Drop for Set {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let set = Set(Arc::clone(&self.0));
        async move {
            let _set = set;
            work.await
        }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn a_dead_server_and_a_cut_network_are_told_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let key = key("dead");
    let hour = Duration::from_secs(3600);
    let cut = locks(proxy.port()).term(hour).unwrap().lock(&key, Wait::No).await.unwrap();
    proxy.sever();
    assert!(matches!(cut.lost().await, Lost::Closed { .. }));
    until("freed", async || holders(&server, &key).is_empty()).await;
    let guard = locks(server.port()).term(hour).unwrap().lock(&key, Wait::No).await.unwrap();
    server.server().kill9();
    assert!(matches!(guard.lost().await, Lost::Closed { .. }));
    let told = locks(server.port()).lock(&key, Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::Unreachable { .. }), "{told:?}");
}

/// The network swallows everything, and no socket closes: belief ends first, then the server's.
#[tokio::test]
async fn a_silent_network_is_told_before_the_server_lets_go() {
    let proxy = Proxy::start(postgres().addr());
    let key = key("silent");
    let locks = locks(proxy.port()).term(Duration::from_secs(4)).unwrap();
    let guard = locks.lock(&key, Wait::No).await.unwrap();
    // It lives longer than its term by asking.
    let asked = proxy.bytes_to_server();
    until("asked", async || proxy.bytes_to_server() > asked).await;
    proxy.pause();
    let began = Instant::now();
    assert_eq!(guard.lost().await, Lost::Silent);
    assert_eq!(holders(postgres(), &key).len(), 1, "the server let go before the loss was told");
    assert!(!guard.is_held());
    free(&key).await;
    assert!(began.elapsed() < LONG);
    assert!(matches!(guard.release().await, Release::AlreadyLost(Lost::Silent)));
}

#[tokio::test]
async fn it_outlives_its_term_by_asking() {
    let key = key("outlives");
    let term = Duration::from_secs(2);
    let guard = locks(postgres().port()).term(term).unwrap().lock(&key, Wait::No).await.unwrap();
    let holder = holders(postgres(), &key);
    tokio::select! {
        lost = guard.lost() => panic!("{lost:?}"),
        () = tokio::time::sleep(term * 3) => {}
    }
    assert!(guard.is_held());
    assert_eq!(holders(postgres(), &key), holder);
    assert_eq!(guard.release().await, Release::Released);
}

/// A guard whose runtime is blocked asks nothing: the clock tells, and the server ends the session.
#[test]
fn a_blocked_runtime_is_told_by_the_clock() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = key("blocked");
    let locks = locks(postgres().port()).term(Duration::from_secs(2)).unwrap();
    let guard = runtime.block_on(locks.lock(&key, Wait::No)).unwrap();
    assert!(guard.is_held());
    // Nothing of the runtime runs meanwhile.
    let end = Instant::now() + LONG;
    while guard.is_held() {
        assert!(Instant::now() < end, "it is believed for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    let lost = runtime.block_on(guard.lost());
    assert!(matches!(lost, Lost::Silent | Lost::Closed { .. }), "{lost:?}");
}

#[tokio::test]
async fn a_release_without_an_answer_is_unknown() {
    let proxy = Proxy::start(postgres().addr());
    let key = key("unknown");
    let guard = locks(proxy.port()).lock(&key, Wait::No).await.unwrap();
    proxy.drop_replies(1);
    assert_eq!(guard.release().await, Release::Unknown);
    free(&key).await;
}

/// A pooler in transaction mode is refused before anything is set, and its connections are as before.
#[tokio::test]
async fn a_pooler_is_refused_and_left_as_it_was() {
    let bouncer = PgBouncer::start(postgres().port(), 2);
    let key = key("pooled");
    for wait in [Wait::No, WAIT] {
        let told = locks(bouncer.port()).lock(&key, wait).await.unwrap_err();
        assert!(matches!(told, Error::Pooled { .. }), "{told:?}");
        let text = told.to_string();
        assert!(text.contains("lock::advisory") && text.contains("lease"), "{text}");
    }
    assert!(holders(postgres(), &key).is_empty());
    let client = lock_common::tokio_postgres_client(bouncer.port()).await;
    for name in ["idle_session_timeout", "tcp_user_timeout", "lock_timeout"] {
        let ask = format!("SELECT current_setting('{name}')");
        let rows = client.query_typed(&ask, &[]).await.unwrap();
        assert_eq!(rows[0].get::<_, String>(0), "0", "{name}");
    }
}

#[tokio::test]
async fn a_standby_is_refused() {
    let primary = Server::start();
    let of = Some((primary.port(), "standby".to_owned()));
    let standby = Server::with(Options { standby_of: of, ..Options::default() });
    let told = locks(standby.port()).lock(&key("standby"), Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::ReadOnly(None)), "{told:?}");
    assert!(told.to_string().contains("primary"), "{told}");
}

#[tokio::test]
async fn who_may_not_log_in_is_told_apart_and_no_secret_shows() {
    let hba = vec![
        "host all stranger 127.0.0.1/32 reject".to_owned(),
        "host all app 127.0.0.1/32 scram-sha-256".to_owned(),
    ];
    let server = Server::with(Options { hba, ..Options::default() });
    server.sql("CREATE ROLE app LOGIN PASSWORD 'right'");
    let mut config = postgres_config(server.port());
    config.user("app").password("s3cret");
    let told =
        Postgres::new(config.clone(), NoTls).lock(&key("login"), Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::Permission(_)), "{told:?}");
    assert!(!format!("{told:?}{told}").contains("s3cret"));
    assert!(!format!("{:?}", Postgres::new(config.clone(), NoTls)).contains("s3cret"));
    config.user("stranger");
    let told = Postgres::new(config, NoTls).lock(&key("login"), Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::Permission(_)), "{told:?}");
    // Of its own rights a role needs none.
    let mut config = postgres_config(server.port());
    config.user("app").password("right");
    let guard = Postgres::new(config, NoTls).lock(&key("login"), Wait::No).await.unwrap();
    assert_eq!(guard.release().await, Release::Released);
}

#[tokio::test]
async fn terms_have_bounds() {
    for term in [Duration::ZERO, Duration::from_millis(1999), Duration::from_secs(3601)] {
        let told = locks(1).term(term).unwrap_err();
        assert!(matches!(told, Error::OutOfBounds { .. }), "{told:?}");
    }
}

/// The wait ends just as the lock is freed: whoever is told that it has not has left nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_so_where_the_wait_ends_as_it_is_granted() {
    let key = key("race");
    let locks = locks(postgres().port());
    let (mut granted, mut refused) = (0, 0);
    for round in 0..60_u64 {
        let guard = locks.lock(&key, WAIT).await.unwrap();
        let after = Duration::from_millis(5 + round * 3);
        let frees = async {
            tokio::time::sleep(after).await;
            guard.release().await
        };
        let other = locks.lock(&key, Wait::AtMost(Duration::from_millis(20)));
        let (told, released) = tokio::join!(other, frees);
        assert_eq!(released, Release::Released);
        match told {
            Ok(other) => {
                granted += 1;
                assert_eq!(holders(postgres(), &key).len(), 1, "round {round}");
                assert_eq!(other.release().await, Release::Released);
            }
            Err(Error::WaitOver { .. }) => {
                refused += 1;
                free(&key).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(granted > 0 && refused > 0, "{granted} granted, {refused} refused");
}

/// While one waits, an index can be made: nobody waits with a snapshot for long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_does_not_hold_up_an_index() {
    let key = key("index");
    let server = postgres();
    server.sql("CREATE TABLE indexed (n bigint)");
    let locks = locks(server.port());
    let guard = locks.lock(&key, Wait::No).await.unwrap();
    let waiter = tokio::spawn(async move { locks.lock(&key, WAIT).await });
    let made = tokio::task::spawn_blocking(|| {
        postgres().sql("CREATE INDEX CONCURRENTLY indexed_n ON indexed (n)")
    });
    made.await.unwrap();
    assert!(guard.is_held() && !waiter.is_finished());
    assert_eq!(guard.release().await, Release::Released);
    let guard: Guard = waiter.await.unwrap().unwrap();
    assert_eq!(guard.release().await, Release::Released);
}
