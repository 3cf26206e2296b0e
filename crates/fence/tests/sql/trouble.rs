//! What goes wrong, each told as what it is.

use leasehold_fence::sql::{Engine, WAIT, enter, guard, marks, present};
use leasehold_fence::{Access::Exclusive, Access::Shared, Error, ErrorKind, Resource};
use leasehold_sql::{Begun, Class};

use crate::drivers::{Driver, at, begin, run};

pub(crate) async fn all(driver: &Driver) {
    outside_a_transaction_there_is_no_fence(driver).await;
    a_corrupt_row_is_named_and_not_trusted(driver).await;
    the_table_refuses_what_is_no_mark(driver).await;
    a_table_that_is_not_there(driver).await;
    match driver.engine {
        Engine::Postgres => {
            an_aborted_transaction(driver).await;
            at_repeatable_read_it_begins_again(driver).await;
            the_wait_is_bounded_and_the_callers_bound_put_back(driver).await;
        }
        Engine::Mysql => the_wait_is_bounded(driver).await,
        _ => triggers_are_not_for_sqlite(driver).await,
    }
}

fn of() -> Resource {
    Resource::new("trouble").unwrap()
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}

async fn outside_a_transaction_there_is_no_fence(driver: &Driver) {
    let mut db = driver.open().await;
    let error = Begun::on(&mut *db).await.map(drop).unwrap_err();
    assert_eq!(error.class(), Class::NoTransaction);
}

async fn a_corrupt_row_is_named_and_not_trusted(driver: &Driver) {
    let mut broken = vec![
        "exclusive_token = 5, exclusive_epoch = NULL",
        "exclusive_token = 0, exclusive_epoch = 0",
        "exclusive_token = 5, exclusive_epoch = -1",
        "shared_token = 5, shared_epoch = 4294967296",
        "shared_token = NULL, shared_epoch = 3",
        "shared_token = 9007199254740992, shared_epoch = 0",
    ];
    if driver.engine == Engine::Sqlite {
        broken.push("exclusive_token = 'x', exclusive_epoch = 0");
    }
    let mut db = driver.open().await;
    // The table's own checks would refuse these.
    match driver.engine {
        Engine::Postgres => {
            run(&mut *db, "CREATE SCHEMA unchecked").await;
            run(&mut *db, "SET search_path = unchecked").await;
            run(
                &mut *db,
                "CREATE TABLE leasehold_fence (LIKE public.leasehold_fence INCLUDING INDEXES)",
            )
            .await;
        }
        Engine::Mysql => run(&mut *db, "SET check_constraint_checks = OFF").await,
        _ => run(&mut *db, "PRAGMA ignore_check_constraints = 1").await,
    }
    for set in broken {
        let mut tx = begin(&mut *db).await;
        enter(&mut tx, &of(), Exclusive, at(1)).await.unwrap();
        run(&mut *db, &format!("UPDATE leasehold_fence SET {set}")).await;
        let mut tx = Begun::on(&mut *db).await.unwrap();
        for access in [Exclusive, Shared] {
            let error = enter(&mut tx, &of(), access, at(99)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{set}");
            assert!(error.to_string().contains("`trouble`"), "{error}");
            let error = guard(&mut tx, &of(), access, at(99)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{set}");
        }
        assert_eq!(marks(&mut tx, &of()).await.unwrap_err().kind(), ErrorKind::Corrupt);
        run(&mut *db, "ROLLBACK").await;
    }
}

async fn the_table_refuses_what_is_no_mark(driver: &Driver) {
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    enter(&mut tx, &of(), Exclusive, at(1)).await.unwrap();
    run(&mut *db, "COMMIT").await;
    for set in ["exclusive_token = 0", "exclusive_token = NULL", "shared_epoch = 0", "slot = -2"] {
        let statement = format!("UPDATE leasehold_fence SET {set}");
        let error = db.execute(&statement, &[]).await.unwrap_err();
        assert_eq!(error.class(), Class::Refused, "{set}: {error:?}");
    }
}

async fn a_table_that_is_not_there(driver: &Driver) {
    let mut db = driver.open().await;
    match driver.engine {
        Engine::Postgres => run(&mut *db, "SET search_path = pg_catalog").await,
        Engine::Mysql => run(&mut *db, "USE mysql").await,
        // Another file is another database.
        _ => db = Box::new(rusqlite::Connection::open_in_memory().unwrap()),
    }
    let mut tx = begin(&mut *db).await;
    let error = enter(&mut tx, &of(), Exclusive, at(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoTable, "{error:?}");
    assert!(error.to_string().contains("create_table makes the one of the marks"), "{error}");
    assert!(cause(&error).starts_with("there is no such table"), "{error:?}");
}

async fn an_aborted_transaction(driver: &Driver) {
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    leasehold_sql::Transaction::rows(&mut tx, "SELECT 1 / 0", &[]).await.unwrap_err();
    for answer in [
        enter(&mut tx, &of(), Exclusive, at(1)).await,
        guard(&mut tx, &of(), Exclusive, at(1)).await,
    ] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert!(error.to_string().contains("roll it back"), "{error}");
    }
}

/// A snapshot taken before an earlier access had ended would show what was before it.
async fn at_repeatable_read_it_begins_again(driver: &Driver) {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let account = driver.account(&format!("snapshot_{}", level.len())).await;
        let (mut old, mut new) = (driver.open().await, driver.open().await);
        let mut tx = begin(&mut *old).await;
        enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap();
        run(&mut *old, "COMMIT").await;
        let mut tx = begin(&mut *old).await;
        enter(&mut tx, &account.of, Exclusive, at(1)).await.unwrap();
        // The entry itself takes the snapshot, and then waits. The mark of the old one stays the same.
        run(&mut *new, &format!("BEGIN ISOLATION LEVEL {level}")).await;
        let mut late = Begun::on(&mut *new).await.unwrap();
        let ((), entered) = tokio::join!(
            async {
                driver.somebody_waits().await;
                account.set(&mut *old, 90).await;
                run(&mut *old, "COMMIT").await;
            },
            enter(&mut late, &account.of, Exclusive, at(2))
        );
        let error = entered.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Restart, "{error:?}");
        assert!(error.to_string().contains("run this one again whole"), "{error}");
        run(&mut *new, "ROLLBACK").await;
    }
}

async fn the_wait_is_bounded_and_the_callers_bound_put_back(driver: &Driver) {
    the_wait_is_bounded(driver).await;
    let mut db = driver.open().await;
    run(&mut *db, "SET lock_timeout = '7s'").await;
    let mut tx = begin(&mut *db).await;
    enter(&mut tx, &of(), Exclusive, at(1)).await.unwrap();
    assert!(enter(&mut tx, &Resource::new("new").unwrap(), Shared, at(1)).await.is_ok());
    guard(&mut tx, &of(), Exclusive, at(1)).await.unwrap();
    for _ in 0..2 {
        let rows = db.rows("SELECT current_setting('lock_timeout')", &[]).await.unwrap();
        assert_eq!(rows[0].text(0), Some("7s"));
        run(&mut *db, "ROLLBACK").await;
    }
}

async fn the_wait_is_bounded(driver: &Driver) {
    let (mut one, mut other) = (driver.open().await, driver.open().await);
    let mut tx = begin(&mut *one).await;
    enter(&mut tx, &of(), Exclusive, at(1)).await.unwrap();
    let mut late = begin(&mut *other).await;
    let answer = tokio::time::timeout(WAIT * 6, enter(&mut late, &of(), Exclusive, at(2))).await;
    let error = answer.expect("the wait has a bound").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    assert!(error.to_string().contains("another transaction holds the row"), "{error}");
    run(&mut *other, "ROLLBACK").await;
    run(&mut *one, "COMMIT").await;
}

async fn triggers_are_not_for_sqlite(driver: &Driver) {
    let mut db = driver.open().await;
    let mut tx = begin(&mut *db).await;
    let error = present(&mut tx, Some(at(1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
