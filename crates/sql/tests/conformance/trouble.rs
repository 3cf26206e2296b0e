//! What goes wrong, and its class.

use leasehold_sql::{Begun, Class, Engine, Result};

use crate::drivers::Driver;

pub(crate) async fn all(driver: &Driver) {
    what_the_table_refuses(driver).await;
    what_is_not_there(driver).await;
    what_may_not_be_done(driver).await;
    a_failed_transaction(driver).await;
    what_another_transaction_holds(driver).await;
    what_has_changed_since(driver).await;
    if driver.engine != Engine::Sqlite {
        a_deadlock(driver).await;
        a_role_that_may_not(driver).await;
    }
    // Last: the server is gone after it.
    a_lost_connection(driver).await;
}

#[track_caller]
fn is<T: std::fmt::Debug>(answer: Result<T>, class: Class) {
    let error = answer.unwrap_err();
    let cause = std::error::Error::source(&error);
    assert_eq!(error.class(), class, "{error}: {cause:?}");
    assert_eq!(error.code().is_none(), class == Class::Connection, "{error}: {cause:?}");
}

async fn what_the_table_refuses(driver: &Driver) {
    let mut db = driver.open().await;
    let make = "CREATE TABLE strict (n BIGINT PRIMARY KEY CHECK (n < 100))";
    db.execute(make, &[]).await.unwrap();
    db.execute("INSERT INTO strict VALUES (1)", &[]).await.unwrap();
    let put = driver.sql(
        "INSERT INTO strict VALUES ($1)",
        "INSERT INTO strict VALUES (?)",
        "INSERT INTO strict VALUES (?1)",
    );
    is(db.execute(put, &[1.into()]).await, Class::Duplicate);
    is(db.execute(put, &[100.into()]).await, Class::Refused);
    is(db.rows("SELECT FROM FROM", &[]).await, Class::Other);
}

async fn what_is_not_there(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("CREATE TABLE there (n BIGINT)", &[]).await.unwrap();
    is(db.rows("SELECT n FROM nowhere", &[]).await, Class::NoTable);
    is(db.rows("SELECT absent FROM there", &[]).await, Class::NoColumn);
    is(db.execute("UPDATE there SET absent = 1", &[]).await, Class::NoColumn);
    is(db.execute("INSERT INTO there (absent) VALUES (1)", &[]).await, Class::NoColumn);
}

async fn what_may_not_be_done(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("CREATE TABLE kept_as_is (n BIGINT)", &[]).await.unwrap();
    let set = driver.sql(
        "SET default_transaction_read_only = on",
        "SET SESSION TRANSACTION READ ONLY",
        "PRAGMA query_only = 1",
    );
    db.execute(set, &[]).await.unwrap();
    is(db.execute("INSERT INTO kept_as_is VALUES (1)", &[]).await, Class::ReadOnly);
}

/// PostgreSQL takes nothing more after an error; the others do.
async fn a_failed_transaction(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("BEGIN", &[]).await.unwrap();
    assert!(db.rows("SELECT n FROM nowhere", &[]).await.is_err());
    let begun = Begun::on(&mut *db).await.map(drop);
    if driver.engine == Engine::Postgres {
        is(begun, Class::Aborted);
        is(db.rows("SELECT 1", &[]).await, Class::Aborted);
    } else {
        begun.unwrap();
    }
    db.execute("ROLLBACK", &[]).await.unwrap();
}

async fn what_another_transaction_holds(driver: &Driver) {
    let (mut one, mut other) = (driver.open().await, driver.open().await);
    one.execute("CREATE TABLE held (n BIGINT)", &[]).await.unwrap();
    one.execute("INSERT INTO held VALUES (1)", &[]).await.unwrap();
    one.execute("BEGIN", &[]).await.unwrap();
    one.execute("UPDATE held SET n = 2", &[]).await.unwrap();
    let wait = driver.sql(
        "SET lock_timeout = '50ms'",
        "SET innodb_lock_wait_timeout = 1",
        "PRAGMA busy_timeout = 50",
    );
    other.execute(wait, &[]).await.unwrap();
    is(other.execute("UPDATE held SET n = 3", &[]).await, Class::Busy);
    if driver.engine != Engine::Sqlite {
        is(other.rows("SELECT n FROM held FOR UPDATE NOWAIT", &[]).await, Class::Busy);
    }
    one.execute("COMMIT", &[]).await.unwrap();
    other.execute("UPDATE held SET n = 3", &[]).await.unwrap();
}

async fn what_has_changed_since(driver: &Driver) {
    let (mut one, mut other) = (driver.open().await, driver.open().await);
    one.execute("CREATE TABLE seen (n BIGINT)", &[]).await.unwrap();
    one.execute("INSERT INTO seen VALUES (1)", &[]).await.unwrap();
    let begin = driver.sql(
        "BEGIN ISOLATION LEVEL REPEATABLE READ",
        "SET SESSION innodb_snapshot_isolation = ON",
        "BEGIN",
    );
    if driver.engine == Engine::Mysql && one.execute(begin, &[]).await.is_err() {
        // MySQL, and MariaDB before 10.6.18, never tell: the write lands on what is newest.
        return;
    }
    let begin = if driver.engine == Engine::Mysql { "BEGIN" } else { begin };
    one.execute(begin, &[]).await.unwrap();
    assert_eq!(one.rows("SELECT n FROM seen", &[]).await.unwrap()[0].int(0), Some(1));
    other.execute("UPDATE seen SET n = 2", &[]).await.unwrap();
    is(one.execute("UPDATE seen SET n = n + 1", &[]).await, Class::Restart);
    one.execute("ROLLBACK", &[]).await.unwrap();
}

async fn a_deadlock(driver: &Driver) {
    let (mut one, mut other) = (driver.open().await, driver.open().await);
    one.execute("CREATE TABLE pair (k BIGINT PRIMARY KEY, n BIGINT)", &[]).await.unwrap();
    one.execute("INSERT INTO pair VALUES (1, 0), (2, 0)", &[]).await.unwrap();
    let (first, second) =
        ("UPDATE pair SET n = n + 1 WHERE k = 1", "UPDATE pair SET n = n + 1 WHERE k = 2");
    for (db, statement) in [(&mut one, first), (&mut other, second)] {
        db.execute("BEGIN", &[]).await.unwrap();
        db.execute(statement, &[]).await.unwrap();
    }
    let (a, b) = tokio::join!(
        async {
            let answer = one.execute(second, &[]).await;
            one.execute("ROLLBACK", &[]).await.unwrap();
            answer
        },
        async {
            let answer = other.execute(first, &[]).await;
            other.execute("ROLLBACK", &[]).await.unwrap();
            answer
        }
    );
    assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
    is(a.and(b), Class::Deadlock);
}

async fn a_role_that_may_not(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("CREATE TABLE closed (n BIGINT)", &[]).await.unwrap();
    db.execute("CREATE ROLE guest", &[]).await.unwrap();
    if driver.engine == Engine::Postgres {
        db.execute("SET ROLE guest", &[]).await.unwrap();
        return is(db.rows("SELECT n FROM closed", &[]).await, Class::Permission);
    }
    let function = "CREATE DEFINER = guest FUNCTION peek() RETURNS BIGINT READS SQL DATA \
                    RETURN (SELECT MAX(n) FROM closed)";
    db.execute(function, &[]).await.unwrap();
    db.execute("GRANT EXECUTE ON trial.* TO guest", &[]).await.unwrap();
    is(db.rows("SELECT peek()", &[]).await, Class::Permission);
}

async fn a_lost_connection(driver: &Driver) {
    let Some(kill) = &driver.kill else { return };
    let mut db = driver.open().await;
    db.execute("BEGIN", &[]).await.unwrap();
    kill();
    is(db.rows("SELECT 1", &[]).await, Class::Connection);
    is(db.execute("UPDATE nowhere SET n = 1", &[]).await, Class::Connection);
    is(Begun::on(&mut *db).await.map(drop), Class::Connection);
}
