//! Advisory locks in a transaction, on a real server and through both drivers.
#![allow(clippy::unwrap_used)]

mod lock_common;

use std::time::{Duration, Instant};

use leasehold_data::lock::{Error, Key, Wait, advisory};
use leasehold_sql::{Begun, Engine, Transaction};
use leasehold_testkit::server::pgbouncer::PgBouncer;
use lock_common::{
    Driver, LONG, Place, SqlxPostgres, TokioPostgres, count_up, fresh, kill, postgres, until, waits,
};
use tempfile::tempdir;

const BOTH: [Driver; 2] = [TokioPostgres, SqlxPostgres];
const WAIT: Wait = Wait::AtMost(LONG);

fn key(what: &str) -> Key {
    Key::new(&fresh(what)).unwrap()
}

/// Held by some transaction, as the server sees it.
fn is_locked(key: &Key) -> bool {
    let held = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 \
         AND classid::int8 << 32 | objid::int8 = {}",
        key.number()
    );
    postgres().sql(&held) != "0"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_is_exact_under_contention() {
    let folder = tempdir().unwrap();
    let name = fresh("counter");
    postgres().sql(&format!("INSERT INTO counter VALUES ('{name}', 0)"));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (place, name) = (Place::new(BOTH[task % 2], folder.path()), name.clone());
            tokio::spawn(async move {
                let key = Key::new(&name).unwrap();
                let mut db = place.open().await;
                for _ in 0..20 {
                    let mut tx = db.begin().await;
                    advisory::lock(&mut tx, &key, WAIT).await.unwrap();
                    count_up(&mut tx, &name).await;
                    db.commit().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(postgres().sql(&format!("SELECT n FROM counter WHERE name = '{name}'")), "160");
}

#[tokio::test]
async fn a_held_lock_is_busy_and_the_transaction_goes_on() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let (mut holder, mut other) = (place.open().await, place.open().await);
        let key = key("held");
        advisory::lock(&mut holder.begin().await, &key, Wait::No).await.unwrap();
        let mut tx = other.begin().await;
        let row = fresh("row");
        tx.execute(&format!("INSERT INTO counter VALUES ('{row}', 1)"), &[]).await.unwrap();
        let told = advisory::lock(&mut tx, &key, Wait::No).await.unwrap_err();
        assert!(matches!(&told, Error::Busy { name, .. } if name == key.shown()), "{told:?}");
        let short = Wait::AtMost(Duration::from_millis(50));
        for _ in 0..3 {
            let told = advisory::lock(&mut tx, &key, short).await.unwrap_err();
            assert!(matches!(told, Error::WaitOver { .. }), "{told:?}");
            assert!(!told.ends_transaction());
        }
        // An operator's cancel ends the wait, not the transaction.
        let id = other.server_id().await;
        let mut tx = other.again().await;
        let mut waiting = Box::pin(async { advisory::lock(&mut tx, &key, WAIT).await });
        tokio::select! {
            biased;
            early = &mut waiting => panic!("taken too early: {early:?}"),
            () = until("it waits", async || waits(Engine::Postgres, &id)) => {}
        }
        postgres().sql(&format!("SELECT pg_cancel_backend({id})"));
        assert!(matches!(waiting.await, Err(Error::WaitOver { .. })));
        holder.rollback().await;
        advisory::lock(&mut tx, &key, WAIT).await.unwrap();
        assert!(is_locked(&key));
        other.commit().await;
        assert!(!is_locked(&key), "the commit frees it");
        assert_eq!(postgres().sql(&format!("SELECT n FROM counter WHERE name = '{row}'")), "1");
    }
}

#[tokio::test]
async fn bounds_are_put_back_and_the_lock_stays() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let (mut holder, mut db) = (place.open().await, place.open().await);
        let key = key("bounds");
        let id = db.server_id().await;
        db.sql("SET lock_timeout = '4321ms'").await;
        db.sql("SET statement_timeout = '54s'").await;
        advisory::lock(&mut holder.begin().await, &key, Wait::No).await.unwrap();
        let mut tx = db.begin().await;
        let waiting = Box::pin(async { advisory::lock(&mut tx, &key, WAIT).await });
        let frees = async {
            until("it waits", async || waits(Engine::Postgres, &id)).await;
            holder.commit().await;
        };
        let (taken, ()) = tokio::join!(waiting, frees);
        taken.unwrap();
        assert!(is_locked(&key));
        for (name, value) in [("lock_timeout", "4321ms"), ("statement_timeout", "54s")] {
            let ask = format!("SELECT current_setting('{name}')");
            assert_eq!(db.text(&ask).await, value);
        }
        db.rollback().await;
    }
}

/// A statement_timeout of the caller that is shorter is not made longer.
#[tokio::test]
async fn a_shorter_bound_of_the_caller_holds() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let (mut holder, mut db) = (place.open().await, place.open().await);
        let key = key("shorter");
        db.sql("SET statement_timeout = '200ms'").await;
        advisory::lock(&mut holder.begin().await, &key, Wait::No).await.unwrap();
        let began = Instant::now();
        let told = advisory::lock(&mut db.begin().await, &key, WAIT).await.unwrap_err();
        assert!(matches!(told, Error::WaitOver { .. }), "{told:?}");
        assert!(began.elapsed() < LONG, "it was not the shorter one");
        holder.rollback().await;
    }
}

#[tokio::test]
async fn shared_locks_share_and_exclude_the_exclusive() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let (mut a, mut b, mut c) = (place.open().await, place.open().await, place.open().await);
        let key = key("shared");
        advisory::lock_shared(&mut a.begin().await, &key, Wait::No).await.unwrap();
        advisory::lock_shared(&mut b.begin().await, &key, Wait::No).await.unwrap();
        let short = Wait::AtMost(Duration::from_millis(50));
        let told = advisory::lock(&mut c.begin().await, &key, short).await;
        assert!(matches!(told, Err(Error::WaitOver { .. })), "{told:?}");
        // A refused upgrade leaves what was there.
        let told = advisory::lock(&mut a.again().await, &key, short).await;
        assert!(matches!(told, Err(Error::WaitOver { .. })), "{told:?}");
        b.rollback().await;
        let told = advisory::lock(&mut c.again().await, &key, Wait::No).await;
        assert!(matches!(told, Err(Error::Busy { .. })), "{told:?}");
        advisory::lock(&mut a.again().await, &key, Wait::No).await.unwrap();
        let told = advisory::lock_shared(&mut c.again().await, &key, Wait::No).await;
        assert!(matches!(told, Err(Error::Busy { .. })), "{told:?}");
        a.commit().await;
        advisory::lock_shared(&mut c.again().await, &key, Wait::No).await.unwrap();
    }
}

#[tokio::test]
async fn it_ends_with_its_transaction_however_that_ends() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let key = key("ends");
        let mut other = place.open().await;
        for end in ["COMMIT", "ROLLBACK", "drop", "kill"] {
            let mut holder = place.open().await;
            let id = holder.server_id().await;
            advisory::lock(&mut holder.begin().await, &key, Wait::No).await.unwrap();
            let told = advisory::lock(&mut other.begin().await, &key, Wait::No).await;
            assert!(matches!(told, Err(Error::Busy { .. })), "{told:?}");
            match end {
                "drop" => drop(holder),
                "kill" => kill(Engine::Postgres, &id),
                end => drop(holder.sql(end).await),
            }
            advisory::lock(&mut other.again().await, &key, WAIT).await.unwrap();
            other.rollback().await;
        }
    }
}

/// Back to a savepoint, what was locked behind it is free.
#[tokio::test]
async fn savepoints_of_the_caller_stay() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let mut db = place.open().await;
        let (before, behind) = (key("before"), key("behind"));
        let mut tx = db.begin().await;
        advisory::lock(&mut tx, &before, WAIT).await.unwrap();
        tx.execute("SAVEPOINT leasehold_lock", &[]).await.unwrap();
        advisory::lock(&mut tx, &behind, WAIT).await.unwrap();
        assert!(is_locked(&before) && is_locked(&behind));
        tx.execute("ROLLBACK TO SAVEPOINT leasehold_lock", &[]).await.unwrap();
        assert!(is_locked(&before) && !is_locked(&behind));
        db.commit().await;
    }
}

/// Others find the key by the statement in the documentation.
#[tokio::test]
async fn the_key_is_what_the_documentation_says() {
    for name in ["nightly", "Ä b", "x"] {
        let key = format!(
            "SELECT ('x' || left(encode(sha256(convert_to('{name}', 'UTF8')), 'hex'), 16))::bit(64)::bigint"
        );
        assert_eq!(postgres().sql(&key), Key::new(name).unwrap().number().to_string());
    }
}

/// A pooler that lends a server connection for a transaction is none to mind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_mode_is_no_trouble() {
    let bouncer = PgBouncer::start(postgres().port(), 2);
    let name = fresh("pooled");
    postgres().sql(&format!("INSERT INTO counter VALUES ('{name}', 0)"));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (port, name) = (bouncer.port(), name.clone());
            tokio::spawn(async move {
                let key = Key::new(&name).unwrap();
                let mut client = lock_common::tokio_postgres_client(port).await;
                for _ in 0..10 {
                    let mut tx = client.transaction().await.unwrap();
                    advisory::lock(&mut tx, &key, WAIT).await.unwrap();
                    let read = format!("SELECT n FROM counter WHERE name = '{name}'");
                    let n =
                        Transaction::rows(&mut tx, &read, &[]).await.unwrap()[0].int(0).unwrap();
                    let write = format!("UPDATE counter SET n = {} WHERE name = '{name}'", n + 1);
                    Transaction::execute(&mut tx, &write, &[]).await.unwrap();
                    tx.commit().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(postgres().sql(&format!("SELECT n FROM counter WHERE name = '{name}'")), "60");
}

/// The wait ends just as the lock is freed: whoever is told that it has the lock has it, and whoever
/// is told that it has not has not, in hundreds of such moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_told_is_so_where_the_wait_ends_as_it_is_granted() {
    let folder = tempdir().unwrap();
    for driver in BOTH {
        let place = Place::new(driver, folder.path());
        let (mut holder, mut db) = (place.open().await, place.open().await);
        let key = key("race");
        let (mut granted, mut refused) = (0, 0);
        for round in 0..300_u64 {
            advisory::lock(&mut holder.begin().await, &key, Wait::No).await.unwrap();
            let mut tx = db.begin().await;
            let wait = Wait::AtMost(Duration::from_millis(3));
            let waiting = async { advisory::lock(&mut tx, &key, wait).await };
            // From well before to well after the end of the wait, which has a few statements before it.
            let frees = async {
                let after = Duration::from_micros(2000 + (round % 60) * 80);
                let end = Instant::now() + after;
                while Instant::now() < end {
                    tokio::task::yield_now().await;
                }
                holder.rollback().await;
            };
            let (told, ()) = tokio::join!(waiting, frees);
            let held = is_held_by_this(&mut tx, &key).await;
            match told {
                Ok(()) => granted += 1,
                Err(Error::WaitOver { .. }) => refused += 1,
                Err(error) => panic!("{error:?}"),
            }
            assert_eq!(told.is_ok(), held, "round {round}: {told:?}");
            db.rollback().await;
        }
        assert!(granted > 0 && refused > 0, "{granted} granted, {refused} refused");
    }
}

async fn is_held_by_this<C: leasehold_sql::Connection + Send + ?Sized>(
    tx: &mut Begun<'_, C>,
    key: &Key,
) -> bool {
    let held = format!(
        "SELECT count(*)::int8 FROM pg_locks WHERE locktype = 'advisory' AND granted \
         AND pid = pg_backend_pid() AND classid::int8 << 32 | objid::int8 = {}",
        key.number()
    );
    tx.rows(&held, &[]).await.unwrap()[0].int(0) == Some(1)
}
