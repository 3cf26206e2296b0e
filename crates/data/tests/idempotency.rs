//! What a claim, a run and an answer are, on each engine.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Conn, Db, keys_in, quoted, run_of};
use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys, Outcome, TryId};
use leasehold_data::{Error, Table};
use leasehold_sql::{Class, Engine};

on_each!(
    a_key_runs_once_and_its_answer_is_replayed,
    another_payload_is_refused,
    who_asks_while_it_runs_is_told_for_how_long,
    a_silent_run_is_taken_over_and_can_do_no_more,
    a_renewed_run_is_not_taken_over,
    the_next_run_goes_on_at_the_recovery_point,
    given_up_is_taken_over_and_forgotten_begins_anew,
    an_answer_expires_and_tokens_rise_over_it,
    a_run_that_outlives_the_time_to_keep_is_kept_from_its_finish,
    what_is_rolled_back_was_never_claimed,
    the_same_try_finds_its_own_run,
    a_run_finishes_once,
    cleaning_removes_what_is_over_in_small_steps,
    what_is_out_of_bounds_is_refused,
    a_table_that_is_missing_or_lacks_a_column_is_told,
    work_key_and_answer_are_in_one_transaction,
);

async fn open(engine: Engine, table: &str) -> (Conn, Keys) {
    let mut conn = Db::of(engine).connect().await;
    let keys = keys_in(&mut conn, table).await;
    (conn, keys)
}

fn key(name: &str) -> Key {
    Key::new("tenant-7", name).unwrap()
}

fn payload(text: &str) -> Fingerprint {
    Fingerprint::of([text])
}

/// Claims in a transaction of its own.
async fn claim(conn: &mut Conn, keys: &Keys, name: &str, text: &str) -> Claimed {
    conn.begin().await;
    let claimed = keys.claim(conn, &key(name), &payload(text)).await.unwrap();
    conn.commit().await;
    claimed
}

/// Lets the time of a row have come: `runs_until_us` or `expires_us`.
async fn age(conn: &mut Conn, table: &str, column: &str) {
    let table = quoted(conn, table);
    assert_eq!(conn.sql(&format!("UPDATE {table} SET {column} = 5")).await, 1);
}

async fn a_key_runs_once_and_its_answer_is_replayed(engine: Engine) {
    let (mut conn, keys) = open(engine, "runs once").await;
    let run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    assert_eq!((run.attempt(), run.recovery_point()), (1, None));
    let body: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let answer = Answer::new(201, body).with_head("location: /orders/41\r\n");
    conn.begin().await;
    keys.finish(&mut conn, &run, &answer).await.unwrap();
    conn.commit().await;
    let mut other = Db::of(engine).connect().await;
    for _ in 0..2 {
        assert_eq!(claim(&mut other, &keys, "k", "p").await, Claimed::Replay(answer.clone()));
    }
    // Another caller's key of the same name is another key.
    other.begin().await;
    let theirs = Key::new("tenant-8", "k").unwrap();
    run_of(keys.claim(&mut other, &theirs, &payload("q")).await);
    other.rollback().await;
    // An empty answer is one too.
    let run = run_of(Ok(claim(&mut conn, &keys, "K", "p").await));
    conn.begin().await;
    keys.finish(&mut conn, &run, &Answer::default()).await.unwrap();
    conn.commit().await;
    assert_eq!(claim(&mut conn, &keys, "K", "p").await, Claimed::Replay(Answer::default()));
}

async fn another_payload_is_refused(engine: Engine) {
    let (mut conn, keys) = open(engine, "payloads").await;
    let run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    assert_eq!(claim(&mut conn, &keys, "k", "q").await, Claimed::Mismatch);
    age(&mut conn, "payloads", "runs_until_us").await;
    assert_eq!(claim(&mut conn, &keys, "k", "q").await, Claimed::Mismatch, "nor may it take over");
    conn.begin().await;
    keys.finish(&mut conn, &run, &Answer::new(200, "done")).await.unwrap();
    conn.commit().await;
    assert_eq!(claim(&mut conn, &keys, "k", "q").await, Claimed::Mismatch);
    assert!(matches!(claim(&mut conn, &keys, "k", "p").await, Claimed::Replay(_)));
}

async fn who_asks_while_it_runs_is_told_for_how_long(engine: Engine) {
    let (mut conn, keys) = open(engine, "busy").await;
    run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    let Claimed::Busy { retry_after } = claim(&mut conn, &keys, "k", "p").await else {
        panic!("two run at once");
    };
    assert!(retry_after <= Duration::from_secs(60), "{retry_after:?}");
    let Claimed::Busy { retry_after: later } = claim(&mut conn, &keys, "k", "p").await else {
        panic!("two run at once");
    };
    assert!(later < retry_after && !later.is_zero(), "{later:?} after {retry_after:?}");
}

async fn a_silent_run_is_taken_over_and_can_do_no_more(engine: Engine) {
    let (mut conn, keys) = open(engine, "silent").await;
    let mut old = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    age(&mut conn, "silent", "runs_until_us").await;
    let new = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    assert!(new.token() > old.token(), "{new:?} after {old:?}");
    assert_eq!(new.attempt(), 2);
    assert_eq!(new.step("charge"), old.step("charge"), "downstream it is one operation");
    let answer = Answer::new(200, "old");
    conn.begin().await;
    let newer = new.token();
    let refused = [
        keys.finish(&mut conn, &old, &answer).await,
        keys.renew(&mut conn, &old).await,
        keys.recovery_point(&mut conn, &mut old, "charged", b"").await,
        keys.give_up(&mut conn, &old).await,
        keys.forget(&mut conn, &old).await,
    ];
    for refused in refused {
        let Err(Error::TakenOver { newer: told }) = refused else { panic!("{refused:?}") };
        assert_eq!(told, newer);
    }
    keys.finish(&mut conn, &new, &Answer::new(200, "new")).await.unwrap();
    let refused = keys.finish(&mut conn, &old, &answer).await;
    assert!(matches!(refused, Err(Error::TakenOver { .. })), "{refused:?}");
    conn.commit().await;
    let replayed = claim(&mut conn, &keys, "k", "p").await;
    assert_eq!(replayed, Claimed::Replay(Answer::new(200, "new")));
}

async fn a_renewed_run_is_not_taken_over(engine: Engine) {
    let (mut conn, keys) = open(engine, "renewed").await;
    let mut run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    age(&mut conn, "renewed", "runs_until_us").await;
    conn.begin().await;
    keys.renew(&mut conn, &run).await.unwrap();
    conn.commit().await;
    assert!(matches!(claim(&mut conn, &keys, "k", "p").await, Claimed::Busy { .. }));
    age(&mut conn, "renewed", "runs_until_us").await;
    conn.begin().await;
    keys.recovery_point(&mut conn, &mut run, "half", b"way").await.unwrap();
    conn.commit().await;
    assert!(matches!(claim(&mut conn, &keys, "k", "p").await, Claimed::Busy { .. }));
}

async fn the_next_run_goes_on_at_the_recovery_point(engine: Engine) {
    let (mut conn, keys) = open(engine, "points").await;
    let mut run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    conn.begin().await;
    keys.recovery_point(&mut conn, &mut run, "charged", b"ch_1\0\xff").await.unwrap();
    conn.commit().await;
    assert_eq!(run.recovery_point().unwrap().name, "charged");
    age(&mut conn, "points", "runs_until_us").await;
    let next = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    assert_eq!(next.recovery_point(), run.recovery_point());
    assert_eq!(next.attempt(), 2);
    conn.begin().await;
    keys.finish(&mut conn, &next, &Answer::new(200, "paid")).await.unwrap();
    conn.commit().await;
    let left = "SELECT COUNT(*) FROM points WHERE point_state IS NOT NULL";
    assert_eq!(conn.number(left).await, 0, "what it needed on its way is not kept");
}

async fn given_up_is_taken_over_and_forgotten_begins_anew(engine: Engine) {
    let (mut conn, keys) = open(engine, "given up").await;
    let mut run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    conn.begin().await;
    keys.recovery_point(&mut conn, &mut run, "half", b"way").await.unwrap();
    keys.give_up(&mut conn, &run).await.unwrap();
    keys.give_up(&mut conn, &run).await.unwrap();
    conn.commit().await;
    assert_eq!(claim(&mut conn, &keys, "k", "q").await, Claimed::Mismatch);
    let second = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    assert!(second.token() > run.token());
    assert_eq!(second.recovery_point(), run.recovery_point());
    conn.begin().await;
    keys.forget(&mut conn, &second).await.unwrap();
    assert!(matches!(keys.forget(&mut conn, &second).await, Err(Error::Forgotten)));
    conn.commit().await;
    let third = run_of(Ok(claim(&mut conn, &keys, "k", "q").await));
    assert!(third.token() > second.token());
    assert_eq!((third.attempt(), third.recovery_point()), (1, None));
}

async fn an_answer_expires_and_tokens_rise_over_it(engine: Engine) {
    let (mut conn, keys) = open(engine, "expiry").await;
    let first = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    // One that is heard of does not expire.
    age(&mut conn, "expiry", "expires_us").await;
    assert!(matches!(claim(&mut conn, &keys, "k", "p").await, Claimed::Busy { .. }));
    conn.begin().await;
    keys.finish(&mut conn, &first, &Answer::new(200, "old")).await.unwrap();
    conn.commit().await;
    assert!(matches!(claim(&mut conn, &keys, "k", "p").await, Claimed::Replay(_)));
    age(&mut conn, "expiry", "expires_us").await;
    let second = run_of(Ok(claim(&mut conn, &keys, "k", "another").await));
    assert!(second.token() > first.token());
    assert_eq!(second.attempt(), 1);
    assert!(matches!(claim(&mut conn, &keys, "k", "another").await, Claimed::Busy { .. }));
    conn.begin().await;
    let late = keys.finish(&mut conn, &first, &Answer::new(200, "late")).await;
    assert!(matches!(late, Err(Error::TakenOver { .. })), "{late:?}");
    conn.rollback().await;
    // Cleaned and used again, the token is above all before.
    age(&mut conn, "expiry", "expires_us").await;
    age(&mut conn, "expiry", "runs_until_us").await;
    conn.begin().await;
    assert_eq!(keys.clean(&mut conn, 10).await.unwrap(), 1);
    conn.commit().await;
    let third = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    assert!(third.token() > second.token());
}

async fn a_run_that_outlives_the_time_to_keep_is_kept_from_its_finish(engine: Engine) {
    let (mut conn, keys) = open(engine, "outlives").await;
    let keys = keys.keep(Duration::from_secs(3600)).unwrap();
    let run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    let expires = "SELECT expires_us FROM outlives";
    let claimed = conn.number(expires).await;
    conn.begin().await;
    keys.finish(&mut conn, &run, &Answer::new(200, "soon")).await.unwrap();
    assert_eq!(conn.number(expires).await, claimed, "no index is touched");
    conn.rollback().await;
    conn.sql("UPDATE outlives SET expires_us = expires_us - 1800000000").await;
    conn.begin().await;
    keys.finish(&mut conn, &run, &Answer::new(200, "late")).await.unwrap();
    conn.commit().await;
    assert!(conn.number(expires).await >= claimed, "it is kept for its hour from now");
}

async fn what_is_rolled_back_was_never_claimed(engine: Engine) {
    let (mut conn, keys) = open(engine, "rolled back").await;
    conn.begin().await;
    let run = run_of(keys.claim(&mut conn, &key("k"), &payload("p")).await);
    keys.finish(&mut conn, &run, &Answer::new(200, "no")).await.unwrap();
    conn.rollback().await;
    conn.begin().await;
    assert!(matches!(keys.renew(&mut conn, &run).await, Err(Error::Forgotten)));
    conn.rollback().await;
    run_of(Ok(claim(&mut conn, &keys, "k", "another").await));
}

async fn the_same_try_finds_its_own_run(engine: Engine) {
    let (mut conn, keys) = open(engine, "own").await;
    let id = TryId::random().unwrap();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        conn.begin().await;
        let run = run_of(keys.claim_as(&mut conn, &key("k"), &payload("p"), &id).await);
        conn.commit().await;
        tokens.push((run.token(), run.attempt()));
        // Whatever it had left, it has its whole term again.
        age(&mut conn, "own", "runs_until_us").await;
    }
    assert_eq!(tokens[0], tokens[1]);
    conn.begin().await;
    run_of(keys.claim_as(&mut conn, &key("k"), &payload("p"), &id).await);
    conn.commit().await;
    assert!(matches!(claim(&mut conn, &keys, "k", "p").await, Claimed::Busy { .. }));
}

async fn a_run_finishes_once(engine: Engine) {
    let (mut conn, keys) = open(engine, "finishes once").await;
    let run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    conn.begin().await;
    keys.finish(&mut conn, &run, &Answer::new(200, "one")).await.unwrap();
    conn.commit().await;
    conn.begin().await;
    let twice = keys.finish(&mut conn, &run, &Answer::new(200, "two")).await;
    assert!(matches!(twice, Err(Error::Finished)), "{twice:?}");
    assert!(matches!(keys.renew(&mut conn, &run).await, Err(Error::Finished)));
    conn.rollback().await;
    let replayed = claim(&mut conn, &keys, "k", "p").await;
    assert_eq!(replayed, Claimed::Replay(Answer::new(200, "one")));
}

async fn cleaning_removes_what_is_over_in_small_steps(engine: Engine) {
    let (mut conn, keys) = open(engine, "cleaned").await;
    for n in 0..12 {
        let run = run_of(Ok(claim(&mut conn, &keys, &n.to_string(), "p").await));
        if n % 2 == 0 {
            conn.begin().await;
            keys.finish(&mut conn, &run, &Answer::new(200, "done")).await.unwrap();
            conn.commit().await;
        }
    }
    conn.begin().await;
    assert_eq!(keys.clean(&mut conn, 100).await.unwrap(), 0, "nothing is over");
    conn.commit().await;
    // All but two have expired; the odd ones still run, but for one that is silent.
    conn.sql("UPDATE cleaned SET expires_us = 5 WHERE request_key NOT IN ('0', '1')").await;
    conn.sql("UPDATE cleaned SET runs_until_us = 5 WHERE request_key = '3'").await;
    let mut steps = Vec::new();
    loop {
        conn.begin().await;
        steps.push(keys.clean(&mut conn, 4).await.unwrap());
        conn.commit().await;
        if steps.last() < Some(&4) {
            break;
        }
    }
    assert_eq!(steps, [4, 2]);
    let left = conn.number("SELECT COUNT(*) FROM cleaned").await;
    assert_eq!(left, 6, "0 is kept, and 1, 5, 7, 9 and 11 are heard of");
}

async fn what_is_out_of_bounds_is_refused(engine: Engine) {
    let (mut conn, keys) = open(engine, "bounds").await;
    let keys = keys.answer_limit(10).unwrap();
    let mut run = run_of(Ok(claim(&mut conn, &keys, "k", "p").await));
    conn.begin().await;
    let large = Answer::new(200, "12345678").with_head("abc");
    let refused = keys.finish(&mut conn, &run, &large).await;
    assert!(matches!(refused, Err(Error::AnswerTooLarge { length: 11, limit: 10 })), "{refused:?}");
    for name in ["", &"x".repeat(256)] {
        let refused = keys.recovery_point(&mut conn, &mut run, name, b"").await;
        assert!(matches!(refused, Err(Error::PointName { .. })), "{refused:?}");
    }
    let refused = keys.recovery_point(&mut conn, &mut run, "x", &[0; 65537]).await;
    assert!(matches!(refused, Err(Error::StateTooLarge { length: 65537 })), "{refused:?}");
    keys.recovery_point(&mut conn, &mut run, &"ä".repeat(127), &[0; 65536]).await.unwrap();
    keys.finish(&mut conn, &run, &Answer::new(200, "1234567").with_head("abc")).await.unwrap();
    conn.commit().await;
    for term in [Duration::ZERO, Duration::from_secs(86_401)] {
        assert!(matches!(Keys::new().term(term), Err(Error::OutOfBounds { .. })));
    }
    assert!(matches!(Keys::new().keep(Duration::ZERO), Err(Error::OutOfBounds { .. })));
    assert!(matches!(Keys::new().answer_limit(1 << 24), Err(Error::OutOfBounds { .. })));
    // The longest key and scope go in and come out.
    let longest = Key::new("ä".repeat(127), "k'\"`\\%_?$1".repeat(25)).unwrap();
    conn.begin().await;
    let run = run_of(keys.claim(&mut conn, &longest, &payload("p")).await);
    keys.finish(&mut conn, &run, &Answer::new(200, "long")).await.unwrap();
    let replayed = keys.claim(&mut conn, &longest, &payload("p")).await.unwrap();
    assert_eq!(replayed, Claimed::Replay(Answer::new(200, "long")));
    conn.commit().await;
}

async fn a_table_that_is_missing_or_lacks_a_column_is_told(engine: Engine) {
    let (mut conn, keys) = open(engine, "lacking").await;
    let missing = Keys::new().in_table(Table::new("never made").unwrap()).unwrap();
    conn.begin().await;
    let refused = missing.claim(&mut conn, &key("k"), &payload("p")).await.unwrap_err();
    assert!(
        matches!(&refused, Error::NoTable { table, .. } if table == "never made"),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("create_table"), "{refused}");
    if engine == Engine::Postgres {
        let refused = keys.claim(&mut conn, &key("k"), &payload("p")).await.unwrap_err();
        assert!(matches!(refused, Error::Aborted(_)), "{refused:?}");
        assert_eq!(refused.class(), Some(Class::Aborted));
    }
    conn.rollback().await;
    conn.sql("ALTER TABLE lacking RENAME COLUMN fingerprint TO other").await;
    conn.begin().await;
    let refused = keys.claim(&mut conn, &key("k"), &payload("p")).await.unwrap_err();
    assert!(matches!(&refused, Error::NoColumn { table, .. } if table == "lacking"), "{refused:?}");
    conn.rollback().await;
}

async fn work_key_and_answer_are_in_one_transaction(engine: Engine) {
    let (mut conn, keys) = open(engine, "once").await;
    conn.sql("DROP TABLE IF EXISTS done").await;
    conn.sql("CREATE TABLE done (what VARCHAR(20))").await;
    let once = async |conn: &mut Conn, text: &str, fails: bool| {
        conn.begin().await;
        let work = async |conn: &mut Conn| -> Result<Answer, Error> {
            conn.put("INSERT INTO done VALUES (?)", &["x".into()]).await?;
            if fails { Err(Error::Versions) } else { Ok(Answer::new(200, "done")) }
        };
        let outcome = keys.once(conn, &key("k"), &payload(text), work).await;
        conn.sql(if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" }).await;
        outcome
    };
    assert!(matches!(once(&mut conn, "p", true).await, Err(Error::Versions)));
    assert_eq!(conn.number("SELECT COUNT(*) FROM done").await, 0);
    let done = once(&mut conn, "p", false).await.unwrap();
    assert_eq!(done, Outcome::Done(Answer::new(200, "done")));
    let again = once(&mut conn, "p", false).await.unwrap();
    assert_eq!(again, Outcome::Replayed(Answer::new(200, "done")));
    assert_eq!(once(&mut conn, "q", false).await.unwrap(), Outcome::Mismatch);
    assert_eq!(conn.number("SELECT COUNT(*) FROM done").await, 1);
}
