//! Versions, amounts and unique keys, on each engine.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Conn, Db};
use leasehold_data::conditional::{Added, Amounts, Short, Taken};
use leasehold_data::unique::{Found, Unique};
use leasehold_data::version::{Updated, Versioned};
use leasehold_data::{Error, Param, Table};
use leasehold_sql::{Class, Engine, Row, Value};

on_each!(
    a_version_tells_changed_stale_and_missing_apart,
    a_table_without_the_version_column_is_told,
    names_are_nothing_but_names,
    an_amount_never_goes_below_zero,
    several_rows_are_taken_all_or_none,
    an_amount_never_rises_above_its_most,
    all_who_insert_one_key_get_one_row,
    another_payload_and_other_keys_are_told,
    a_table_without_the_unique_key_is_refused,
);

async fn open(engine: Engine, table: &str, columns: &str) -> Conn {
    let mut conn = Db::of(engine).connect().await;
    conn.sql(&format!("DROP TABLE IF EXISTS {table}")).await;
    conn.sql(&format!("CREATE TABLE {table} ({columns})")).await;
    conn
}

async fn a_version_tells_changed_stale_and_missing_apart(engine: Engine) {
    let columns = "id VARCHAR(20) PRIMARY KEY, name VARCHAR(20), version BIGINT NOT NULL";
    let mut conn = open(engine, "accounts", columns).await;
    conn.sql("INSERT INTO accounts VALUES ('a', 'old', 7)").await;
    let accounts = Versioned::new("accounts", "id", "version").unwrap();
    conn.begin().await;
    assert_eq!(accounts.version(&mut conn, "a").await.unwrap(), Some(7));
    assert_eq!(accounts.version(&mut conn, "b").await.unwrap(), None);
    let set = [("name", Param::from("new"))];
    let changed = accounts.update(&mut conn, "a", 7, &set).await.unwrap();
    assert_eq!(changed, Updated::Changed { version: 8 });
    let stale = accounts.update(&mut conn, "a", 7, &set).await.unwrap();
    assert_eq!(stale, Updated::Stale { version: 8 });
    let missing = accounts.update(&mut conn, "b", 7, &set).await.unwrap();
    assert_eq!(missing, Updated::Missing);
    // With the same value again it is a change, as with no value at all.
    let same = accounts.update(&mut conn, "a", 8, &set).await.unwrap();
    assert_eq!(same, Updated::Changed { version: 9 });
    let touched = accounts.update(&mut conn, "a", 9, &[]).await.unwrap();
    assert_eq!(touched, Updated::Changed { version: 10 });
    let nulled = [("name", Param::from(Value::Null))];
    accounts.update(&mut conn, "a", 10, &nulled).await.unwrap();
    assert!(matches!(accounts.update(&mut conn, "a", i64::MAX, &[]).await, Err(Error::Versions)));
    assert_eq!(accounts.delete(&mut conn, "a", 10).await.unwrap(), Updated::Stale { version: 11 });
    assert_eq!(
        accounts.delete(&mut conn, "a", 11).await.unwrap(),
        Updated::Changed { version: 11 }
    );
    assert_eq!(accounts.delete(&mut conn, "a", 11).await.unwrap(), Updated::Missing);
    conn.commit().await;
}

async fn a_table_without_the_version_column_is_told(engine: Engine) {
    let mut conn = open(engine, "plain", "id BIGINT PRIMARY KEY, name VARCHAR(20)").await;
    conn.sql("INSERT INTO plain VALUES (1, 'x')").await;
    let plain = Versioned::new("plain", "id", "version").unwrap();
    conn.begin().await;
    let refused = plain.update(&mut conn, 1, 1, &[]).await.unwrap_err();
    let told = refused.to_string();
    assert!(matches!(&refused, Error::NoColumn { table, .. } if table == "plain"), "{refused:?}");
    assert!(told.contains("plain") && told.contains("version"), "{told}");
    conn.rollback().await;
    conn.begin().await;
    let refused = plain.version(&mut conn, 1).await.unwrap_err();
    assert!(matches!(refused, Error::NoColumn { .. }), "not the text 'version': {refused:?}");
    conn.rollback().await;
    let missing = Amounts::new("nowhere", "id", "amount").unwrap();
    conn.begin().await;
    let refused = missing.take(&mut conn, &[(1.into(), 1)]).await.unwrap_err();
    assert!(matches!(refused, Error::NoTable { .. }), "{refused:?}");
    conn.rollback().await;
}

async fn names_are_nothing_but_names(engine: Engine) {
    let mut conn = Db::of(engine).connect().await;
    let name = "select \"x\" `y`; --'";
    let (open, close) = if engine == Engine::Postgres { ('"', '"') } else { ('`', '`') };
    let doubled = name.replace(open, &format!("{open}{close}"));
    let quoted = format!("{open}{doubled}{close}");
    conn.sql(&format!("DROP TABLE IF EXISTS {quoted}")).await;
    conn.sql(&format!("CREATE TABLE {quoted} ({quoted} BIGINT PRIMARY KEY, v BIGINT)")).await;
    conn.sql(&format!("INSERT INTO {quoted} VALUES (1, 5)")).await;
    let schema = match engine {
        Engine::Postgres => "public",
        Engine::Mysql => "shop",
        _ => "main",
    };
    let table = Table::in_schema(schema, name).unwrap();
    conn.begin().await;
    let versioned = Versioned::of(table.clone(), name, "v").unwrap();
    assert_eq!(versioned.version(&mut conn, 1).await.unwrap(), Some(5));
    let amounts = Amounts::of(table.clone(), name, "v").unwrap();
    let taken = amounts.take(&mut conn, &[(1.into(), 2)]).await.unwrap();
    assert_eq!(taken, Taken::All(vec![(1.into(), 3)]));
    let unique = Unique::of(table, &[name]).unwrap().answer("v").unwrap();
    let found = unique.insert_or_find(&mut conn, &[1.into()], &[("v", 3.into())]).await.unwrap();
    assert_eq!(found, Found::Same(Row::new(vec![Value::Int(3)])));
    conn.commit().await;
}

async fn stock(engine: Engine, table: &str) -> (Conn, Amounts) {
    let mut conn = open(engine, table, "sku VARCHAR(20) PRIMARY KEY, pieces INT").await;
    conn.sql(&format!("INSERT INTO {table} VALUES ('a', 3), ('b', 5), ('c', 0), ('n', NULL)"))
        .await;
    (conn, Amounts::new(table, "sku", "pieces").unwrap())
}

async fn an_amount_never_goes_below_zero(engine: Engine) {
    let (mut conn, stock) = stock(engine, "stock_one").await;
    conn.begin().await;
    let taken = stock.take(&mut conn, &[("a".into(), 2)]).await.unwrap();
    assert_eq!(taken, Taken::All(vec![("a".into(), 1)]));
    let short = |id: &str, wanted, left| Taken::Short(Short { id: id.into(), wanted, left });
    let taken = stock.take(&mut conn, &[("a".into(), 2)]).await.unwrap();
    assert_eq!(taken, short("a", 2, Some(1)));
    assert_eq!(
        stock.take(&mut conn, &[("a".into(), 1)]).await.unwrap(),
        Taken::All(vec![("a".into(), 0)])
    );
    assert_eq!(stock.take(&mut conn, &[("a".into(), 1)]).await.unwrap(), short("a", 1, Some(0)));
    assert_eq!(stock.take(&mut conn, &[("x".into(), 1)]).await.unwrap(), short("x", 1, None));
    assert_eq!(stock.take(&mut conn, &[("n".into(), 1)]).await.unwrap(), short("n", 1, None));
    let all = stock.take(&mut conn, &[("b".into(), i64::MAX)]).await.unwrap();
    assert_eq!(all, short("b", i64::MAX, Some(5)));
    assert!(matches!(stock.take(&mut conn, &[("b".into(), 0)]).await, Err(Error::Amount { .. })));
    assert!(matches!(stock.take(&mut conn, &[("b".into(), -1)]).await, Err(Error::Amount { .. })));
    conn.commit().await;
}

async fn several_rows_are_taken_all_or_none(engine: Engine) {
    let (mut conn, stock) = stock(engine, "stock_many").await;
    conn.begin().await;
    let wanted = [("b".into(), 2), ("c".into(), 1), ("a".into(), 1)];
    let taken = stock.take(&mut conn, &wanted).await.unwrap();
    assert_eq!(taken, Taken::Short(Short { id: "c".into(), wanted: 1, left: Some(0) }));
    conn.commit().await;
    let sum = "SELECT CAST(SUM(pieces) AS DECIMAL(9, 0)) = 8 FROM stock_many";
    let sum = if engine == Engine::Sqlite { "SELECT SUM(pieces) = 8 FROM stock_many" } else { sum };
    assert_eq!(conn.number(sum).await, 1, "nothing is taken, though it was committed");
    conn.begin().await;
    // Twice named is taken once, with the sum.
    let wanted = [("b".into(), 2), ("a".into(), 1), ("b".into(), 3)];
    let taken = stock.take(&mut conn, &wanted).await.unwrap();
    assert_eq!(taken, Taken::All(vec![("a".into(), 2), ("b".into(), 0)]));
    conn.commit().await;
}

async fn an_amount_never_rises_above_its_most(engine: Engine) {
    let (mut conn, stock) = stock(engine, "stock_most").await;
    let seats = stock.clone().at_most(6);
    conn.begin().await;
    let added = seats.add(&mut conn, &[("b".into(), 1), ("a".into(), 1)]).await.unwrap();
    assert_eq!(added, Added::All(vec![("a".into(), 4), ("b".into(), 6)]));
    let refused = seats.add(&mut conn, &[("b".into(), 1), ("a".into(), 1)]).await.unwrap();
    assert_eq!(refused, Added::Refused(Short { id: "b".into(), wanted: 1, left: Some(6) }));
    let missing = seats.add(&mut conn, &[("x".into(), 1)]).await.unwrap();
    assert_eq!(missing, Added::Refused(Short { id: "x".into(), wanted: 1, left: None }));
    conn.commit().await;
    assert_eq!(conn.number("SELECT pieces FROM stock_most WHERE sku = 'a'").await, 4);
    if engine == Engine::Sqlite {
        // There an integer that is too large would become a number with a fraction, in silence.
        conn.sql("UPDATE stock_most SET pieces = 9223372036854775800 WHERE sku = 'a'").await;
        conn.begin().await;
        let refused = stock.add(&mut conn, &[("a".into(), 8)]).await.unwrap();
        assert!(matches!(refused, Added::Refused(_)), "{refused:?}");
        conn.commit().await;
        return;
    }
    conn.begin().await;
    let refused = stock.add(&mut conn, &[("a".into(), i64::from(i32::MAX))]).await.unwrap_err();
    assert_eq!(refused.class(), Some(Class::Refused), "{refused:?}");
    conn.rollback().await;
}

const USERS: &str = "email VARCHAR(40) NOT NULL, name VARCHAR(40), phone VARCHAR(20), \
     UNIQUE (email), UNIQUE (phone)";

async fn users(engine: Engine, table: &str) -> (Conn, Unique) {
    let id = match engine {
        Engine::Postgres => "id BIGSERIAL PRIMARY KEY",
        Engine::Mysql => "id BIGINT AUTO_INCREMENT PRIMARY KEY",
        _ => "id INTEGER PRIMARY KEY",
    };
    let conn = open(engine, table, &format!("{id}, {USERS}")).await;
    (conn, Unique::new(table, &["email"]).unwrap().answer("id").unwrap())
}

async fn all_who_insert_one_key_get_one_row(engine: Engine) {
    let (_, users) = users(engine, "users_race").await;
    let db = Db::of(engine);
    let contend = async || {
        let mut conn = db.connect().await;
        let insert = async || {
            conn.clear().await;
            conn.try_begin().await?;
            let (key, payload) = (["a@b".into()], [("name", "A".into())]);
            let found = users.insert_or_find(&mut conn, &key, &payload).await?;
            conn.try_sql("COMMIT").await?;
            Ok::<Found, Error>(found)
        };
        let retry = leasehold_data::retry::Retry::new().tries(40);
        retry.run(tokio::time::sleep, insert).await.unwrap()
    };
    let all: Vec<_> = (0..12).map(|_| contend()).collect();
    let told = futures_util::future::join_all(all).await;
    let mut inserted = 0;
    let mut ids: Vec<Option<i64>> = Vec::new();
    for found in &told {
        match found {
            Found::Inserted(row) => {
                inserted += 1;
                ids.push(row.int(0));
            }
            Found::Same(row) => ids.push(row.int(0)),
            Found::Other { .. } => panic!("{told:?}"),
        }
    }
    assert_eq!(inserted, 1, "{told:?}");
    assert!(ids.iter().all(|id| id.is_some() && *id == ids[0]), "{ids:?}");
}

async fn another_payload_and_other_keys_are_told(engine: Engine) {
    let (mut conn, users) = users(engine, "users_other").await;
    conn.begin().await;
    let key = [Param::from("a@b")];
    let payload = |name: Value| [("name", Param::from(name)), ("phone", Param::from("1"))];
    let found = users.insert_or_find(&mut conn, &key, &payload("Ann".into())).await.unwrap();
    assert!(matches!(found, Found::Inserted(_)));
    let found = users.insert_or_find(&mut conn, &key, &payload("Ann".into())).await.unwrap();
    assert!(matches!(found, Found::Same(_)));
    // A collation would take some of these for the same.
    for other in ["Bob".into(), "ann".into(), "Ann ".into(), "Änn".into(), Value::Null] {
        let found = users.insert_or_find(&mut conn, &key, &payload(other)).await.unwrap();
        assert_eq!(found, Found::Other { column: "name".to_owned() });
    }
    let other = [("name", Param::from("Ann")), ("phone", Param::from("2"))];
    let found = users.insert_or_find(&mut conn, &key, &other).await.unwrap();
    assert_eq!(found, Found::Other { column: "phone".to_owned() });
    let wrong = users.insert_or_find(&mut conn, &[], &other).await;
    assert!(matches!(wrong, Err(Error::TooMany { count: 0, most: 1, .. })), "{wrong:?}");
    // Another unique key of the table is in the way: no row is found under this one.
    let taken = [("name", Param::from("Cid")), ("phone", Param::from("1"))];
    let refused = users.insert_or_find(&mut conn, &["c@d".into()], &taken).await.unwrap_err();
    assert_eq!(refused.class(), Some(Class::Duplicate), "{refused:?}");
    conn.rollback().await;
    // NULL is found as NULL.
    conn.begin().await;
    let none = [("name", Param::from(Value::Null))];
    users.insert_or_find(&mut conn, &key, &none).await.unwrap();
    let found = users.insert_or_find(&mut conn, &key, &none).await.unwrap();
    assert!(matches!(found, Found::Same(_)), "{found:?}");
    conn.rollback().await;
}

async fn a_table_without_the_unique_key_is_refused(engine: Engine) {
    let mut conn = open(engine, "no_key", "a BIGINT, b BIGINT, c BIGINT, UNIQUE (a, b)").await;
    let insert = async |conn: &mut Conn, key: &[&str], values: &[Param]| {
        conn.begin().await;
        let unique = Unique::new("no_key", key).unwrap();
        let found = unique.insert_or_find(conn, values, &[("c", 1.into())]).await;
        conn.rollback().await;
        found
    };
    let refused = insert(&mut conn, &["a"], &[1.into()]).await.unwrap_err();
    assert!(matches!(refused, Error::NoUniqueKey { .. }), "{refused:?}");
    // In any order they are the same key.
    insert(&mut conn, &["b", "a"], &[1.into(), 2.into()]).await.unwrap();
    conn.begin().await;
    let nowhere = Unique::new("nowhere", &["a"]).unwrap();
    let refused = nowhere.insert_or_find(&mut conn, &[1.into()], &[]).await.unwrap_err();
    assert!(matches!(refused, Error::NoTable { .. }), "{refused:?}");
    conn.rollback().await;
}
