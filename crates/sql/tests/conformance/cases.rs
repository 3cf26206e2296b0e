//! What goes in comes out, and what a transaction is.

use leasehold_sql::{Begun, Class, Engine, Transaction, Value};

use crate::drivers::Driver;

pub(crate) async fn all(driver: &Driver) {
    values_come_back_as_they_went_in(driver).await;
    null_does_not_decide_how_later_values_are_read(driver).await;
    small_integers_and_nothing_are_read(driver).await;
    other_types_are_refused_with_advice(driver).await;
    matched_rows_are_told(driver).await;
    outside_a_transaction_there_is_none(driver).await;
    a_transaction_by_hand_is_found_and_left_as_it_was(driver).await;
}

async fn values_come_back_as_they_went_in(driver: &Driver) {
    let mut db = driver.open().await;
    let text = driver.sql(
        "CREATE TABLE kept (i bigint, t text, b bytea)",
        "CREATE TABLE kept (i BIGINT, t VARCHAR(99) COLLATE utf8mb4_bin, b VARBINARY(99))",
        "CREATE TABLE kept (i INTEGER, t TEXT, b BLOB)",
    );
    db.execute(text, &[]).await.unwrap();
    let put = driver.sql(
        "INSERT INTO kept VALUES ($1, $2, $3)",
        "INSERT INTO kept VALUES (?, ?, ?)",
        "INSERT INTO kept VALUES (?1, ?2, ?3)",
    );
    let all = [
        [0_i64.into(), "".into(), vec![].into()],
        [i64::MAX.into(), "Straße 🐢 \"'\\".into(), vec![0, 255, 1].into()],
        [i64::MIN.into(), "  x ".into(), b"text".to_vec().into()],
        [Value::Null, Value::Null, Value::Null],
    ];
    for values in &all {
        assert_eq!(db.execute(put, values).await.unwrap(), 1);
    }
    let find = driver.sql(
        "SELECT i, t, b FROM kept WHERE i = $1 AND t = $2 AND b = $3",
        "SELECT i, t, b FROM kept WHERE i = ? AND t = ? AND b = ?",
        "SELECT i, t, b FROM kept WHERE i = ?1 AND t = ?2 AND b = ?3",
    );
    for values in &all[..3] {
        let rows = db.rows(find, values).await.unwrap();
        assert_eq!(rows.len(), 1, "{values:?}");
        for (at, value) in values.iter().enumerate() {
            assert_eq!(rows[0].get(at), Some(value));
        }
        assert_eq!(rows[0].get(3), None);
    }
    let rows = db.rows("SELECT i, t, b FROM kept WHERE i IS NULL", &[]).await.unwrap();
    assert!((0..3).all(|at| rows[0].is_null(at)));
}

async fn null_does_not_decide_how_later_values_are_read(driver: &Driver) {
    let mut db = driver.open().await;
    let ask = driver.sql("SELECT $1::int4, $2::text", "SELECT ?, ?", "SELECT ?1, ?2");
    for values in [[Value::Null, Value::Null], [7.into(), "seven".into()], [8.into(), Value::Null]]
    {
        let rows = db.rows(ask, &values).await.unwrap();
        assert_eq!(rows[0].get(0), Some(&values[0]));
        assert_eq!(rows[0].get(1), Some(&values[1]));
    }
}

async fn small_integers_and_nothing_are_read(driver: &Driver) {
    let mut db = driver.open().await;
    let ask = driver.sql(
        "SELECT 1::int2, 1::int4, 1 = 1, pg_advisory_unlock_all()",
        "SELECT CAST(1 AS UNSIGNED), 1, 1 = 1, NULL",
        "SELECT 1, 1, 1 = 1, NULL",
    );
    let rows = db.rows(ask, &[]).await.unwrap();
    assert_eq!([0, 1, 2].map(|at| rows[0].int(at)), [Some(1); 3]);
    assert!(rows[0].is_null(3));
}

async fn other_types_are_refused_with_advice(driver: &Driver) {
    let mut db = driver.open().await;
    let ask = driver.sql("SELECT 1.5::float8", "SELECT 1.5e0", "SELECT 1.5");
    let error = db.rows(ask, &[]).await.unwrap_err();
    assert_eq!(error.class(), Class::Other);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("cast it"), "{cause}");
}

async fn matched_rows_are_told(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("CREATE TABLE many (n BIGINT)", &[]).await.unwrap();
    assert_eq!(db.execute("INSERT INTO many VALUES (1), (2), (3)", &[]).await.unwrap(), 3);
    let raise = driver.sql(
        "UPDATE many SET n = n + 1 WHERE n > $1",
        "UPDATE many SET n = n + 1 WHERE n > ?",
        "UPDATE many SET n = n + 1 WHERE n > ?1",
    );
    assert_eq!(db.execute(raise, &[1.into()]).await.unwrap(), 2);
    assert_eq!(db.execute(raise, &[9.into()]).await.unwrap(), 0);
    assert_eq!(db.execute("DELETE FROM many", &[]).await.unwrap(), 3);
}

async fn outside_a_transaction_there_is_none(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("CREATE TABLE alone (n BIGINT)", &[]).await.unwrap();
    for _ in 0..2 {
        let error = Begun::on(&mut *db).await.map(drop).unwrap_err();
        assert_eq!(error.class(), Class::NoTransaction);
        assert_eq!(error.to_string(), "the connection is in no transaction");
    }
    // It left none behind either: this is seen by others at once.
    db.execute("INSERT INTO alone VALUES (1)", &[]).await.unwrap();
    let mut other = driver.open().await;
    assert_eq!(other.rows("SELECT n FROM alone", &[]).await.unwrap().len(), 1);
}

async fn a_transaction_by_hand_is_found_and_left_as_it_was(driver: &Driver) {
    let mut db = driver.open().await;
    db.execute("CREATE TABLE hand (n BIGINT)", &[]).await.unwrap();
    for (end, left) in [("ROLLBACK", 0), ("COMMIT", 2)] {
        db.execute("BEGIN", &[]).await.unwrap();
        db.execute("INSERT INTO hand VALUES (1)", &[]).await.unwrap();
        let mut tx = Begun::on(&mut *db).await.unwrap();
        let tx: &mut dyn Transaction = &mut tx;
        tx.execute("INSERT INTO hand VALUES (2)", &[]).await.unwrap();
        assert_eq!(tx.rows("SELECT n FROM hand", &[]).await.unwrap().len(), 2);
        db.execute(end, &[]).await.unwrap();
        assert_eq!(db.rows("SELECT n FROM hand", &[]).await.unwrap().len(), left, "{end}");
    }
    if driver.engine == Engine::Mysql {
        // Then there always is one.
        db.execute("SET autocommit = 0", &[]).await.unwrap();
        assert!(Begun::on(&mut *db).await.is_ok());
    }
}
