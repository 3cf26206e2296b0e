//! Row locks, on real servers and through every driver.
#![allow(clippy::unwrap_used)]

mod lock_common;

use std::time::Duration;

use leasehold_data::lock::row::Rows;
use leasehold_data::lock::{Error, Wait};
use leasehold_sql::{Engine, Transaction};
use lock_common::{
    Driver, LONG, MysqlAsync, Place, Rusqlite, SERVERS, SqlxMysql, SqlxPostgres, SqlxSqlite,
    TokioPostgres, count_up, fresh, kill, until, waits,
};
use tempfile::tempdir;

const ALL: [Driver; 6] = [TokioPostgres, SqlxPostgres, MysqlAsync, SqlxMysql, Rusqlite, SqlxSqlite];
const WAIT: Wait = Wait::AtMost(LONG);

/// Each reads, thinks and writes, on a thread of its own, as rusqlite waits on the one it is called
/// on; half of them by one driver and half by the other. The sum is exact.
#[test]
fn a_counter_is_exact_under_contention() {
    let folder = tempdir().unwrap();
    for drivers in [[TokioPostgres, SqlxPostgres], [MysqlAsync, SqlxMysql], [Rusqlite, SqlxSqlite]]
    {
        let name = fresh("counter");
        let places = drivers.map(|driver| Place::new(driver, folder.path()));
        let insert = format!("INSERT INTO counter (name, n) VALUES ('{name}', 0)");
        alone(async { places[0].open().await.sql(&insert).await });
        std::thread::scope(|threads| {
            for place in places.iter().cycle().take(8) {
                threads.spawn(|| alone(count_up_often(place, &name, 20)));
            }
        });
        let read = format!("SELECT n FROM counter WHERE name = '{name}'");
        assert_eq!(alone(async { places[1].open().await.text(&read).await }), "160", "{drivers:?}");
    }
}

async fn count_up_often(place: &Place, name: &str, times: usize) {
    let mut db = place.open().await;
    for _ in 0..times {
        let mut tx = db.begin().await;
        let taken = Rows::default().lock(&mut tx, name, WAIT).await;
        taken.unwrap_or_else(|error| panic!("{:?}: {error:?}", place.driver));
        count_up(&mut tx, name).await;
        db.commit().await;
    }
}

fn alone<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(work)
}

#[tokio::test]
async fn a_held_lock_is_busy_and_a_wait_for_it_is_over_in_time() {
    let folder = tempdir().unwrap();
    for driver in ALL {
        let place = Place::new(driver, folder.path());
        let name = fresh("held");
        let (mut holder, mut other) = (place.open().await, place.open().await);
        Rows::default().lock(&mut holder.begin().await, &name, Wait::No).await.unwrap();
        let mut tx = other.begin().await;
        let busy = Rows::default().lock(&mut tx, &name, Wait::No).await.unwrap_err();
        assert!(matches!(&busy, Error::Busy { name: n, .. } if *n == name), "{driver:?} {busy:?}");
        assert!(!busy.ends_transaction());
        let short = Wait::AtMost(Duration::from_millis(300));
        let over = Rows::default().lock(&mut tx, &name, short).await.unwrap_err();
        assert!(matches!(&over, Error::WaitOver { name: n, .. } if *n == name), "{over:?}");
        // The transaction goes on, and gets it when it is free.
        let n = fresh("row");
        let writes = place.engine() != Engine::Sqlite;
        if writes {
            let insert = format!("INSERT INTO counter VALUES ('{n}', 1)");
            tx.execute(&insert, &[]).await.unwrap();
        }
        holder.commit().await;
        let mut tx = other.again().await;
        Rows::default().lock(&mut tx, &name, WAIT).await.unwrap();
        other.commit().await;
        if writes {
            let kept = other.text(&format!("SELECT n FROM counter WHERE name = '{n}'")).await;
            assert_eq!(kept, "1", "{driver:?}");
        }
    }
}

/// What bounds waits is as before after each outcome, and the lock is still held then.
#[tokio::test]
async fn the_bounds_of_the_session_are_put_back_and_the_lock_stays() {
    let folder = tempdir().unwrap();
    for driver in ALL {
        let place = Place::new(driver, folder.path());
        let (set, ask): (&[&str], &[&str]) = match place.engine() {
            Engine::Postgres => (
                &["SET lock_timeout = '4321ms'", "SET statement_timeout = '54s'"],
                &[
                    "SELECT current_setting('lock_timeout')",
                    "SELECT current_setting('statement_timeout')",
                ],
            ),
            Engine::Mysql => (
                &["SET SESSION innodb_lock_wait_timeout = 7"],
                &["SELECT @@innodb_lock_wait_timeout"],
            ),
            _ => (&[], &["PRAGMA busy_timeout"]),
        };
        let name = fresh("bounds");
        let (mut holder, mut other) = (place.open().await, place.open().await);
        let id = match place.engine() {
            Engine::Sqlite => String::new(),
            _ => other.server_id().await,
        };
        for statement in set {
            other.sql(statement).await;
        }
        let mut before = Vec::new();
        for statement in ask {
            before.push(other.text(statement).await);
        }
        let taken = Rows::default().lock(&mut holder.begin().await, &name, Wait::No).await;
        taken.unwrap_or_else(|error| panic!("{driver:?}: {error:?}"));
        let mut tx = other.begin().await;
        let short = Wait::AtMost(Duration::from_millis(100));
        Rows::default().lock(&mut tx, &name, short).await.unwrap_err();
        Rows::default().lock(&mut tx, &name, Wait::No).await.unwrap_err();
        let taken = {
            let mut taken = Box::pin(async { Rows::default().lock(&mut tx, &name, WAIT).await });
            if place.engine() == Engine::Sqlite {
                holder.commit().await;
            } else {
                tokio::select! {
                    biased;
                    early = &mut taken => panic!("taken too early: {early:?}"),
                    () = until(driver, async || waits(place.engine(), &id)) => {}
                }
                holder.commit().await;
            }
            taken.await
        };
        taken.unwrap();
        let mut third = place.open().await;
        let busy = Rows::default().lock(&mut third.begin().await, &name, Wait::No).await;
        assert!(matches!(busy, Err(Error::Busy { .. })), "{driver:?} {busy:?}");
        for (statement, before) in ask.iter().zip(&before) {
            assert_eq!(other.text(statement).await, *before, "{driver:?} {statement}");
        }
        other.rollback().await;
        third.rollback().await;
        for (statement, before) in ask.iter().zip(&before) {
            assert_eq!(other.text(statement).await, *before, "{driver:?} {statement}");
        }
    }
}

#[tokio::test]
async fn it_ends_with_its_transaction_however_that_ends() {
    let folder = tempdir().unwrap();
    for driver in ALL {
        let place = Place::new(driver, folder.path());
        let name = fresh("ends");
        let mut other = place.open().await;
        for end in ["COMMIT", "ROLLBACK", "drop", "kill"] {
            let mut holder = place.open().await;
            let id = match place.engine() {
                Engine::Sqlite => String::new(),
                _ => holder.server_id().await,
            };
            let taken = Rows::default().lock(&mut holder.begin().await, &name, Wait::No).await;
            taken.unwrap_or_else(|error| panic!("{driver:?} after {end}: {error:?}"));
            let mut tx = other.begin().await;
            let busy = Rows::default().lock(&mut tx, &name, Wait::No).await;
            assert!(matches!(busy, Err(Error::Busy { .. })), "{driver:?} {busy:?}");
            other.rollback().await;
            match end {
                "drop" => drop(holder),
                "kill" if !id.is_empty() => {
                    kill(place.engine(), &id);
                    let mut tx = other.begin().await;
                    Rows::default().lock(&mut tx, &name, WAIT).await.unwrap();
                    other.rollback().await;
                    let sent = holder.raw().execute("COMMIT", &[]).await.unwrap_err();
                    assert_eq!(sent.class(), leasehold_sql::Class::Connection, "{sent:?}");
                    continue;
                }
                "kill" => drop(holder),
                end => drop(holder.sql(end).await),
            }
            let mut tx = other.begin().await;
            Rows::default().lock(&mut tx, &name, WAIT).await.unwrap();
            other.rollback().await;
        }
    }
}

/// A caller's savepoints are its own: what was locked before one stays, and what is behind one goes
/// with it, on PostgreSQL.
#[tokio::test]
async fn savepoints_of_the_caller_stay() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let (held, before, behind) = (fresh("held"), fresh("before"), fresh("behind"));
        let (mut holder, mut db, mut third) =
            (place.open().await, place.open().await, place.open().await);
        let rows = Rows::default();
        rows.lock(&mut holder.begin().await, &held, Wait::No).await.unwrap();
        rows.make(&mut third.begin().await, &[&before, &behind]).await.unwrap();
        third.commit().await;
        let mut tx = db.begin().await;
        rows.lock(&mut tx, &before, Wait::No).await.unwrap();
        let row = fresh("row");
        tx.execute("SAVEPOINT mine", &[]).await.unwrap();
        tx.execute(&format!("INSERT INTO counter VALUES ('{row}', 1)"), &[]).await.unwrap();
        rows.lock(&mut tx, &held, Wait::No).await.unwrap_err();
        rows.lock(&mut tx, &behind, Wait::No).await.unwrap();
        tx.execute("ROLLBACK TO SAVEPOINT mine", &[]).await.unwrap();
        let mut seen = third.begin().await;
        let told = rows.lock(&mut seen, &before, Wait::No).await;
        assert!(matches!(told, Err(Error::Busy { .. })), "{driver:?} {told:?}");
        if place.is_postgres() {
            rows.lock(&mut seen, &behind, Wait::No).await.unwrap();
        }
        third.rollback().await;
        db.commit().await;
        let written = db.rows(&format!("SELECT n FROM counter WHERE name = '{row}'")).await;
        assert!(written.is_empty(), "{driver:?}");
        rows.lock_all(&mut third.begin().await, &[&before, &behind], Wait::No).await.unwrap();
        third.rollback().await;
        holder.rollback().await;
    }
}

/// The first that is free, in the order given; each for one alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_names_the_first_free_one_is_taken() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let names: Vec<String> = (0..4).map(|_| fresh("slot")).collect();
        // Not in the order of their bytes.
        let names: Vec<&str> = [2, 0, 3, 1].map(|at| names[at].as_str()).into();
        let mut maker = place.open().await;
        Rows::default().make(&mut maker.begin().await, &names).await.unwrap();
        maker.commit().await;
        let mut holders = Vec::new();
        for at in 0..4 {
            let mut db = place.open().await;
            let taken = Rows::default().first_free(&mut db.begin().await, &names).await.unwrap();
            assert_eq!(taken, Some(at), "{driver:?}");
            holders.push(db);
        }
        let mut late = place.open().await;
        let mut tx = late.begin().await;
        assert_eq!(Rows::default().first_free(&mut tx, &names).await.unwrap(), None);
        holders[2].commit().await;
        assert_eq!(Rows::default().first_free(&mut tx, &names).await.unwrap(), Some(2));
        late.rollback().await;
        // Names that nobody has ever locked are free, too, but for one that is just being made.
        let new = [fresh("new"), fresh("new")];
        let new = [new[0].as_str(), new[1].as_str()];
        let (mut a, mut b, mut c) = (place.open().await, place.open().await, place.open().await);
        assert_eq!(Rows::default().first_free(&mut a.begin().await, &new).await.unwrap(), Some(0));
        assert_eq!(Rows::default().first_free(&mut b.begin().await, &new).await.unwrap(), Some(1));
        assert_eq!(Rows::default().first_free(&mut c.begin().await, &new).await.unwrap(), None);
        a.rollback().await;
        let mut tx = c.again().await;
        assert_eq!(Rows::default().first_free(&mut tx, &new).await.unwrap(), Some(0));
    }
}

/// Sets of names in any order, of which some have no row yet: nobody deadlocks, and each counter is
/// exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_names_are_locked_without_deadlocks() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let names: Vec<String> = (0..6).map(|_| fresh("many")).collect();
        let mut db = place.open().await;
        for name in &names {
            db.sql(&format!("INSERT INTO counter VALUES ('{name}', 0)")).await;
        }
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let (place, names) = (place.clone(), names.clone());
                tokio::spawn(async move {
                    let mut db = place.open().await;
                    for round in 0..8 {
                        // Three of the six, in an order of the task's own.
                        let own: Vec<&str> = (0..3)
                            .map(|n| {
                                names[(task * 5 + round + n * (task + 1) * 2 + n) % 6].as_str()
                            })
                            .collect();
                        let mut tx = db.begin().await;
                        Rows::default().lock_all(&mut tx, &own, WAIT).await.unwrap();
                        for name in &own {
                            count_up(&mut tx, name).await;
                        }
                        db.commit().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap_or_else(|error| panic!("{driver:?}: {error}"));
        }
        let list = names.join("', '");
        let sum = if place.is_postgres() { "SUM(n)::int8" } else { "CAST(SUM(n) AS SIGNED)" };
        let sum = format!("SELECT {sum} FROM counter WHERE name IN ('{list}')");
        assert_eq!(db.text(&sum).await, (6 * 8 * 3).to_string(), "{driver:?}");
    }
}

/// Many meet a name that nobody has locked before; on PostgreSQL also where the first ones roll back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_made_without_deadlocks() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        for round in 0..6 {
            let name = fresh("new");
            let ends = if place.is_postgres() && round % 2 == 0 { "ROLLBACK" } else { "COMMIT" };
            let tasks: Vec<_> = (0..8)
                .map(|task| {
                    let (place, name) = (place.clone(), name.clone());
                    tokio::spawn(async move {
                        let mut db = place.open().await;
                        let mut tx = db.begin().await;
                        let wait = if task == 7 { Wait::No } else { WAIT };
                        match Rows::default().lock(&mut tx, &name, wait).await {
                            Ok(()) => {}
                            Err(Error::Busy { .. }) if task == 7 => {}
                            Err(error) => panic!("{driver:?}: {error:?}"),
                        }
                        db.sql(ends).await;
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    }
}

/// A row that is deleted under a lock takes nothing from those who wait for it.
#[tokio::test]
async fn rows_may_be_deleted_at_any_time() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        let name = fresh("deleted");
        let (mut holder, mut waiter, mut late) =
            (place.open().await, place.open().await, place.open().await);
        let id = waiter.server_id().await;
        let mut tx = holder.begin().await;
        Rows::default().make(&mut tx, &[&name]).await.unwrap();
        holder.commit().await;
        let mut tx = holder.begin().await;
        Rows::default().lock(&mut tx, &name, Wait::No).await.unwrap();
        let mut tx = waiter.begin().await;
        let mut waiting = Box::pin(async { Rows::default().lock(&mut tx, &name, WAIT).await });
        tokio::select! {
            biased;
            early = &mut waiting => panic!("taken too early: {early:?}"),
            () = until(driver, async || waits(place.engine(), &id)) => {}
        }
        holder.sql(&format!("DELETE FROM leasehold_lock WHERE name = '{name}'")).await;
        holder.commit().await;
        waiting.await.unwrap();
        let mut tx = late.begin().await;
        let busy = Rows::default().lock(&mut tx, &name, Wait::No).await;
        assert!(matches!(busy, Err(Error::Busy { .. })), "{driver:?} {busy:?}");
        late.rollback().await;
        waiter.rollback().await;
    }
}
