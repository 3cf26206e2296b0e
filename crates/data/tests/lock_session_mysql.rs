//! `GET_LOCK` of MariaDB: told when it is lost, and refused where it would exclude nobody.
#![allow(clippy::unwrap_used)]
#![cfg(feature = "mysql_async-0_37")]

mod lock_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_data::lock::session::{Lost, Mysql, Release};
use leasehold_data::lock::{Error, Wait};
use leasehold_testkit::proxy::Proxy;
use leasehold_testkit::server::mariadb::{MariaDb, Options};
use lock_common::{LONG, fresh, mariadb, mysql_opts, until};
use mysql_async::SslOpts;

const WAIT: Wait = Wait::AtMost(LONG);
const HOUR: Duration = Duration::from_secs(3600);

fn locks(port: u16) -> Mysql {
    Mysql::new(mysql_opts(port))
}

/// The connection that has it, as the server sees it.
fn holder(server: &MariaDb, name: &str) -> Option<String> {
    let used = format!("SELECT IS_USED_LOCK(CONCAT('leasehold:', LEFT(SHA2('{name}', 256), 48)))");
    let answer = server.sql("app", &used).trim().to_owned();
    (answer != "NULL").then_some(answer)
}

async fn free(server: &MariaDb, name: &str) {
    until("free", async || holder(server, name).is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holds_it_at_a_time() {
    let name = fresh("one");
    let (inside, entered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (name, inside, entered) = (name.clone(), Arc::clone(&inside), Arc::clone(&entered));
            tokio::spawn(async move {
                for _ in 0..4 {
                    let guard = locks(mariadb().port()).lock(&name, WAIT).await.unwrap();
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
    assert_eq!(holder(mariadb(), &name), None);
}

#[tokio::test]
async fn it_is_busy_waited_for_and_freed() {
    let name = fresh("busy");
    let locks = locks(mariadb().port());
    let guard = locks.lock(&name, Wait::No).await.unwrap();
    assert_eq!(guard.name(), name);
    assert!(holder(mariadb(), &name).is_some(), "others find it by the documented name");
    let told = locks.lock(&name, Wait::No).await.unwrap_err();
    assert!(matches!(&told, Error::Busy { name: n, .. } if *n == name), "{told:?}");
    for millis in [300, 1300] {
        let told = locks.lock(&name, Wait::AtMost(Duration::from_millis(millis))).await;
        assert!(matches!(told, Err(Error::WaitOver { .. })), "{told:?}");
    }
    // Another name, as also one in capitals is.
    let other = locks.lock(&name.to_uppercase(), Wait::No).await.unwrap();
    drop(other);
    for bad in ["", &"x".repeat(513)] {
        assert!(matches!(locks.lock(bad, Wait::No).await, Err(Error::Name(_))));
    }
    let waits = locks.lock(&name, WAIT);
    let drops = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(guard);
    };
    let (taken, ()) = tokio::join!(waits, drops);
    assert_eq!(taken.unwrap().release().await, Release::Released);
}

/// Told by the closing socket: no question is due for a quarter of an hour.
#[tokio::test]
async fn a_killed_connection_is_told_at_once() {
    let name = fresh("killed");
    let locks = locks(mariadb().port()).term(HOUR).unwrap();
    let guard = locks.lock(&name, Wait::No).await.unwrap();
    let work = guard.run(std::future::pending::<()>());
    let kills = async {
        let id = holder(mariadb(), &name).unwrap();
        mariadb().sql("app", &format!("KILL {id}"));
        guard.lost().await
    };
    let (told, lost) = tokio::join!(work, kills);
    assert_eq!(told.unwrap_err(), lost);
    assert!(matches!(lost, Lost::Closed { .. }), "{lost:?}");
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Release::AlreadyLost(Lost::Closed { .. })));
    let guard = locks.lock(&name, WAIT).await.unwrap();
    assert_eq!(guard.release().await, Release::Released);
}

#[tokio::test]
async fn a_dead_server_and_a_cut_network_are_told_at_once() {
    let server = MariaDb::start();
    lock_common::prepare_mariadb(&server);
    let proxy = Proxy::start(server.addr());
    let name = fresh("dead");
    let cut = locks(proxy.port()).term(HOUR).unwrap().lock(&name, Wait::No).await.unwrap();
    proxy.sever();
    assert!(matches!(cut.lost().await, Lost::Closed { .. }));
    free(&server, &name).await;
    let guard = locks(server.port()).term(HOUR).unwrap().lock(&name, Wait::No).await.unwrap();
    server.server().kill9();
    assert!(matches!(guard.lost().await, Lost::Closed { .. }));
    let told = locks(server.port()).lock(&name, Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::Unreachable { .. }), "{told:?}");
}

/// The network swallows everything, and no socket closes: belief ends first, then the server's.
#[tokio::test]
async fn a_silent_network_is_told_before_the_server_lets_go() {
    let proxy = Proxy::start(mariadb().addr());
    let name = fresh("silent");
    let locks = locks(proxy.port()).term(Duration::from_secs(4)).unwrap();
    let guard = locks.lock(&name, Wait::No).await.unwrap();
    let asked = proxy.bytes_to_server();
    until("asked", async || proxy.bytes_to_server() > asked).await;
    proxy.pause();
    assert_eq!(guard.lost().await, Lost::Silent);
    assert!(holder(mariadb(), &name).is_some(), "the server let go before the loss was told");
    free(mariadb(), &name).await;
    assert!(matches!(guard.release().await, Release::AlreadyLost(Lost::Silent)));
}

#[tokio::test]
async fn it_outlives_its_term_by_asking() {
    let name = fresh("outlives");
    let term = Duration::from_secs(2);
    let guard = locks(mariadb().port()).term(term).unwrap().lock(&name, Wait::No).await.unwrap();
    let had = holder(mariadb(), &name);
    tokio::select! {
        lost = guard.lost() => panic!("{lost:?}"),
        () = tokio::time::sleep(term * 3) => {}
    }
    assert!(guard.is_held());
    assert_eq!(holder(mariadb(), &name), had);
    assert_eq!(guard.release().await, Release::Released);
}

#[tokio::test]
async fn a_release_without_an_answer_is_unknown() {
    let proxy = Proxy::start(mariadb().addr());
    let name = fresh("unknown");
    let guard = locks(proxy.port()).lock(&name, Wait::No).await.unwrap();
    proxy.drop_replies(1);
    assert_eq!(guard.release().await, Release::Unknown);
    free(mariadb(), &name).await;
}

#[tokio::test]
async fn a_dropped_wait_leaves_nothing() {
    let name = fresh("dropped");
    let locks = locks(mariadb().port());
    let guard = locks.lock(&name, Wait::No).await.unwrap();
    let waiting = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock'";
    tokio::select! {
        told = locks.lock(&name, WAIT) => panic!("taken too early: {told:?}"),
        () = until("waits", async || mariadb().sql("app", waiting).trim() != "0") => {}
    }
    assert_eq!(guard.release().await, Release::Released);
    free(mariadb(), &name).await;
    let again = locks.lock(&name, Wait::AtMost(Duration::from_secs(10))).await.unwrap();
    assert_eq!(again.release().await, Release::Released);
}

/// TLS goes through to the server, whose certificate is checked against its own name.
#[tokio::test]
async fn tls_goes_through_to_the_server() {
    let server = MariaDb::with(Options { tls: true, ..Options::default() });
    server.sql("mysql", "CREATE USER app REQUIRE SSL");
    let ca = server.certificates().ca();
    let tls = SslOpts::default().with_root_certs(vec![ca.into()]).with_disable_built_in_roots(true);
    let opts = |host: &str| {
        mysql_opts(server.port()).ip_or_hostname(host).user(Some("app")).db_name(None::<String>)
    };
    let guard =
        Mysql::new(opts("localhost").ssl_opts(tls.clone())).lock("tls", Wait::No).await.unwrap();
    assert_eq!(guard.release().await, Release::Released);
    let told = Mysql::new(opts("localhost")).lock("tls", Wait::No).await;
    assert!(matches!(told, Err(Error::Permission(_))), "without it: {told:?}");
    let wrong = tls.with_danger_tls_hostname_override(Some("elsewhere.example"));
    let told = Mysql::new(opts("localhost").ssl_opts(wrong)).lock("tls", Wait::No).await;
    assert!(matches!(told, Err(Error::Unreachable { .. })), "{told:?}");
}

#[tokio::test]
async fn who_may_not_log_in_is_told_apart_and_no_secret_shows() {
    let opts = mysql_opts(mariadb().port()).user(Some("nobody")).pass(Some("s3cret"));
    let locks = Mysql::new(opts);
    let told = locks.lock("a", Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::Permission(_)), "{told:?}");
    assert!(!format!("{told:?}{told}{locks:?}").contains("s3cret"));
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_refused() {
    let args = vec!["--read-only=ON".to_owned()];
    let server = MariaDb::with(Options { args, ..Options::default() });
    let opts = mysql_opts(server.port()).db_name(None::<String>);
    let told = Mysql::new(opts).lock("a", Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::ReadOnly(None)), "{told:?}");
}

#[tokio::test]
async fn a_galera_cluster_is_refused() {
    let galera = MariaDb::galera();
    let opts = mysql_opts(galera.port()).db_name(None::<String>);
    let told = Mysql::new(opts).lock("a", Wait::No).await.unwrap_err();
    assert!(matches!(told, Error::SeveralWriters), "{told:?}");
    assert!(told.to_string().contains("lease"), "{told}");
}
