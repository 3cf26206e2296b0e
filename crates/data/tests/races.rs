//! Two at once: what the isolation levels, the waits and the clocks of the engines make of it.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Conn, Db, ENGINES, block_on, keys_in, run_of};
use leasehold_data::Error;
use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys, Outcome};
use leasehold_data::retry::Retry;
use leasehold_sql::{Class, Engine, Transaction};
use leasehold_testkit::proxy::Proxy;

fn key() -> Key {
    Key::new("tenant-7", "k").unwrap()
}

fn payload() -> Fingerprint {
    Fingerprint::of(["p"])
}

/// Begins at this level, with what the level sees fixed already.
async fn begin(conn: &mut Conn, level: &str, table: &str) {
    match Transaction::engine(conn) {
        Engine::Postgres => {
            conn.sql(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        }
        _ => {
            conn.sql(&format!("SET TRANSACTION ISOLATION LEVEL {level}")).await;
            conn.sql("BEGIN").await;
        }
    }
    // MySQL sees the newest at this level, and would lock the whole table for this.
    if (Transaction::engine(conn), level) != (Engine::Mysql, "SERIALIZABLE") {
        conn.number(&format!("SELECT COUNT(*) FROM {table}")).await;
    }
}

/// One has claimed and goes on; the other claims meanwhile, and waits; then the first ends.
async fn meet(engine: Engine, level: &str, commits: bool) -> Result<Claimed, Error> {
    let table = format!("meet_{}_{commits}", level.replace(' ', "_").to_lowercase());
    let db = Db::of(engine);
    let (mut first, mut watch) = (db.connect().await, db.connect().await);
    let keys = keys_in(&mut first, &table).await;
    begin(&mut first, level, &table).await;
    let run = run_of(keys.claim(&mut first, &key(), &payload()).await);
    let mut second = db.connect().await;
    let id = second.id().await;
    begin(&mut second, level, &table).await;
    let claims = async {
        let claimed = keys.claim(&mut second, &key(), &payload()).await;
        second.clear().await;
        claimed
    };
    let ends = async {
        watch.until_it_waits(id).await;
        if commits {
            keys.finish(&mut first, &run, &Answer::new(200, "done")).await.unwrap();
            first.commit().await;
        } else {
            first.rollback().await;
        }
    };
    let (claimed, ()) = tokio::join!(claims, ends);
    // Whatever became of it, the next transaction is told.
    second.begin().await;
    let next = keys.claim(&mut second, &key(), &payload()).await.unwrap();
    second.rollback().await;
    assert_eq!(matches!(next, Claimed::Replay(_)), commits, "{next:?}");
    claimed
}

const SERVERS: [Engine; 2] = [Engine::Postgres, Engine::Mysql];

#[test]
fn at_read_committed_the_second_waits_and_is_told_what_the_first_did() {
    for engine in SERVERS {
        let told = block_on(meet(engine, "READ COMMITTED", true));
        let answer = Claimed::Replay(Answer::new(200, "done"));
        assert_eq!(told.unwrap(), answer, "{engine:?}");
        run_of(block_on(meet(engine, "READ COMMITTED", false)));
    }
}

#[test]
fn at_repeatable_read_and_serializable_it_is_told_or_told_to_begin_again() {
    for engine in SERVERS {
        for level in ["REPEATABLE READ", "SERIALIZABLE"] {
            let again = |error: &Error| {
                let class = error.class().unwrap();
                matches!(class, Class::Restart | Class::Deadlock)
            };
            match block_on(meet(engine, level, true)) {
                Ok(told) => assert_eq!(told, Claimed::Replay(Answer::new(200, "done"))),
                Err(error) => assert!(again(&error), "{engine:?} {level}: {error:?}"),
            }
            match block_on(meet(engine, level, false)) {
                Ok(told) => assert!(matches!(told, Claimed::Run(_)), "{engine:?} {level}"),
                Err(error) => assert!(again(&error), "{engine:?} {level}: {error:?}"),
            }
        }
    }
}

/// A run that was taken over, as an old snapshot shows it.
#[test]
fn an_old_snapshot_takes_nothing_over() {
    for engine in SERVERS {
        block_on(async {
            let db = Db::of(engine);
            let (mut old, mut new) = (db.connect().await, db.connect().await);
            let keys = keys_in(&mut new, "snapshots").await;
            new.begin().await;
            run_of(keys.claim(&mut new, &key(), &payload()).await);
            new.commit().await;
            new.sql("UPDATE snapshots SET runs_until_us = 5").await;
            begin(&mut old, "REPEATABLE READ", "snapshots").await;
            new.begin().await;
            let run = run_of(keys.claim(&mut new, &key(), &payload()).await);
            keys.finish(&mut new, &run, &Answer::new(200, "done")).await.unwrap();
            new.commit().await;
            match keys.claim(&mut old, &key(), &payload()).await {
                Ok(told) => assert_eq!(told, Claimed::Replay(Answer::new(200, "done"))),
                Err(error) => assert_eq!(error.class(), Some(Class::Restart), "{error:?}"),
            }
            old.clear().await;
        });
    }
}

#[test]
fn a_term_is_counted_from_after_the_wait_for_the_key() {
    for engine in SERVERS {
        block_on(async {
            let db = Db::of(engine);
            let (mut first, mut watch) = (db.connect().await, db.connect().await);
            let term = Duration::from_secs(2);
            let keys = keys_in(&mut first, "waited").await.term(term).unwrap();
            first.begin().await;
            run_of(keys.claim(&mut first, &key(), &payload()).await);
            let mut second = db.connect().await;
            let id = second.id().await;
            second.begin().await;
            let (key, payload) = (key(), payload());
            let claims = keys.claim(&mut second, &key, &payload);
            let ends = async {
                watch.until_it_waits(id).await;
                // This long it waits: most of its term.
                tokio::time::sleep(Duration::from_millis(1500)).await;
                first.rollback().await;
            };
            let (claimed, ()) = tokio::join!(claims, ends);
            run_of(claimed);
            second.commit().await;
            second.begin().await;
            let asked = keys.claim(&mut second, &key, &payload).await.unwrap();
            second.rollback().await;
            let Claimed::Busy { retry_after } = asked else { panic!("{asked:?}") };
            assert!(retry_after > term / 2, "{engine:?}: {retry_after:?} is left of {term:?}");
        });
    }
}

#[test]
fn sessions_in_any_time_zone_agree() {
    for engine in SERVERS {
        block_on(async {
            let db = Db::of(engine);
            let mut conn = db.connect().await;
            let keys = keys_in(&mut conn, "zones").await;
            let zone = |zone: &str| match engine {
                Engine::Postgres => format!("SET TimeZone = '{zone}'"),
                _ => format!("SET time_zone = '{zone}'"),
            };
            conn.sql(&zone("+12:00")).await;
            conn.begin().await;
            run_of(keys.claim(&mut conn, &key(), &payload()).await);
            conn.commit().await;
            for at in ["-12:00", "+00:00", "+05:45"] {
                conn.sql(&zone(at)).await;
                conn.begin().await;
                let asked = keys.claim(&mut conn, &key(), &payload()).await.unwrap();
                conn.rollback().await;
                let Claimed::Busy { retry_after } = asked else { panic!("{at}: {asked:?}") };
                assert!(retry_after <= Duration::from_secs(60), "{at}: {retry_after:?}");
            }
        });
    }
}

/// Sixteen at once, each as often as it must: one does the work.
#[test]
fn of_many_that_claim_at_once_one_runs() {
    for engine in ENGINES {
        block_on(async {
            let db = Db::of(engine);
            let mut conn = db.connect().await;
            let keys = keys_in(&mut conn, "many").await;
            let mut conns = Vec::new();
            for _ in 0..16 {
                conns.push(db.connect().await);
            }
            let contend = async |conn: &mut Conn| {
                let claim = async || {
                    conn.clear().await;
                    conn.try_begin().await?;
                    let claimed = keys.claim(conn, &key(), &payload()).await?;
                    conn.try_sql("COMMIT").await?;
                    Ok::<Claimed, Error>(claimed)
                };
                Retry::new().tries(40).run(tokio::time::sleep, claim).await.unwrap()
            };
            // Of a key that nobody has asked for, and then of one whose run is silent.
            for attempt in [1, 2] {
                let all = conns.iter_mut().map(&contend);
                let told = futures_util::future::join_all(all).await;
                let runs = told.iter().filter_map(|told| match told {
                    Claimed::Run(run) => Some(run.attempt()),
                    _ => None,
                });
                assert_eq!(runs.collect::<Vec<_>>(), [attempt], "{engine:?}: {told:?}");
                let busy = |told: &&Claimed| matches!(told, Claimed::Busy { .. });
                assert_eq!(told.iter().filter(busy).count(), 15, "{engine:?}: {told:?}");
                conn.sql("UPDATE many SET runs_until_us = 5").await;
            }
        });
    }
}

/// The reply of the commit is lost, and the work runs again by its own key: it is done once.
#[test]
fn a_commit_whose_reply_is_lost_is_found_by_its_key() {
    for engine in SERVERS {
        block_on(async {
            let db = Db::of(engine);
            let mut watch = db.connect().await;
            let keys = keys_in(&mut watch, "lost replies").await;
            watch.sql("DROP TABLE IF EXISTS effects").await;
            watch.sql("CREATE TABLE effects (n BIGINT)").await;
            let port = match db {
                Db::Postgres(port) | Db::Mysql(port) => port,
                Db::Sqlite(_) => unreachable!(),
            };
            let proxy = Proxy::start(([127, 0, 0, 1], port).into());
            let through = db.through(proxy.port());
            let mut tries = 0;
            let work = async || {
                tries += 1;
                let mut conn = through.try_connect().await?;
                conn.try_begin().await?;
                let work = async |conn: &mut Conn| -> Result<Answer, Error> {
                    conn.put("INSERT INTO effects VALUES (?)", &[1.into()]).await?;
                    Ok(Answer::new(200, "done"))
                };
                let outcome = keys.once(&mut conn, &key(), &payload(), work).await?;
                if tries == 1 {
                    proxy.drop_replies(1);
                }
                conn.try_sql("COMMIT").await?;
                Ok::<Outcome, Error>(outcome)
            };
            let outcome = Retry::new().run_repeatable(tokio::time::sleep, work).await.unwrap();
            assert_eq!(outcome, Outcome::Replayed(Answer::new(200, "done")), "{engine:?}");
            assert_eq!(tries, 2);
            assert_eq!(watch.number("SELECT COUNT(*) FROM effects").await, 1);
        });
    }
}

/// As above, for work without a key: it is told that nobody knows.
#[test]
fn a_commit_whose_reply_is_lost_is_never_run_again_blindly() {
    for engine in SERVERS {
        block_on(async {
            let db = Db::of(engine);
            let mut watch = db.connect().await;
            watch.sql("DROP TABLE IF EXISTS blind").await;
            watch.sql("CREATE TABLE blind (n BIGINT)").await;
            let port = match db {
                Db::Postgres(port) | Db::Mysql(port) => port,
                Db::Sqlite(_) => unreachable!(),
            };
            let proxy = Proxy::start(([127, 0, 0, 1], port).into());
            let through = db.through(proxy.port());
            let mut tries = 0;
            let mut work = async || {
                tries += 1;
                let mut conn = through.try_connect().await?;
                conn.try_begin().await?;
                conn.put("INSERT INTO blind VALUES (?)", &[1.into()]).await?;
                proxy.drop_replies(1);
                conn.try_sql("COMMIT").await
            };
            let ended = Retry::new().run(tokio::time::sleep, &mut work).await;
            assert!(matches!(ended, Err(leasehold_data::retry::Failed::Unknown(_))), "{ended:?}");
            let probe = async || {
                let found = watch.number("SELECT COUNT(*) FROM blind").await;
                Ok::<_, leasehold_sql::Error>((found > 1).then_some(7))
            };
            let ended = Retry::new().run_probed(tokio::time::sleep, &mut work, probe).await;
            assert_eq!(ended.unwrap(), 7, "the probe found it");
            assert_eq!(tries, 2);
            assert_eq!(watch.number("SELECT COUNT(*) FROM blind").await, 2);
        });
    }
}

/// Some of them roll back, while others wait for their keys.
#[test]
fn keys_of_many_operations_at_once_meet_no_deadlock() {
    for engine in SERVERS {
        block_on(async {
            let db = Db::of(engine);
            let mut conn = db.connect().await;
            let keys: Keys = keys_in(&mut conn, "storm").await;
            let contend = async |seed: usize| {
                let mut conn = db.connect().await;
                let mut again = 0;
                for at in 0..60 {
                    let key = Key::new("t", format!("{}", (seed * 7 + at * 11) % 30)).unwrap();
                    conn.begin().await;
                    let work = async |_: &mut Conn| Ok(Answer::new(200, "x"));
                    let done: Result<_, Error> = keys.once(&mut conn, &key, &payload(), work).await;
                    match done {
                        Ok(_) if at % 5 == 0 => conn.rollback().await,
                        Ok(_) => conn.commit().await,
                        Err(error) => {
                            let class = error.class().unwrap();
                            assert!(matches!(class, Class::Restart | Class::Deadlock), "{error:?}");
                            again += 1;
                            conn.clear().await;
                        }
                    }
                }
                again
            };
            let all: Vec<_> = (0..8).map(contend).collect();
            let again: i32 = futures_util::future::join_all(all).await.into_iter().sum();
            // Only several that wait for one that rolls back may meet one, on MySQL.
            assert!(again <= 8, "{engine:?}: {again} of 480 had to begin again");
        });
    }
}
