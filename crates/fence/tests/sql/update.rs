//! A row that carries the mark of its last writer.

use leasehold_fence::sql::{Engine, Update};
use leasehold_fence::{Epoch, ErrorKind, Mark};
use leasehold_sql::{Begun, Connection, Value};

use crate::drivers::{Driver, at, begin, run};

pub(crate) async fn all(driver: &Driver) {
    let mut db = driver.open().await;
    let make = "CREATE TABLE shelf (id BIGINT PRIMARY KEY, qty BIGINT, was BIGINT, note VARCHAR(20), \
                kind BIGINT, fence_epoch BIGINT, fence_token BIGINT)";
    run(&mut *db, make).await;
    run(&mut *db, "INSERT INTO shelf (id, qty, kind) VALUES (1, 10, 1), (2, 10, 1)").await;
    begin(&mut *db).await;
    it_passes_until_a_newer_one_has(&mut *db).await;
    each_refusal_is_its_own(&mut *db).await;
    run(&mut *db, "ROLLBACK").await;
    what_is_not_there(driver, &mut *db).await;
}

async fn shelf(db: &mut dyn Connection) -> (i64, Option<String>, Option<i64>, Option<i64>) {
    let ask = "SELECT qty, note, fence_epoch, fence_token FROM shelf WHERE id = 1";
    let rows = db.rows(ask, &[]).await.unwrap();
    let row = &rows[0];
    (row.int(0).unwrap(), row.text(1).map(str::to_owned), row.int(2), row.int(3))
}

async fn it_passes_until_a_newer_one_has(db: &mut dyn Connection) {
    let take = || Update::of("shelf", "id", 1).add("qty", -1).set("note", "taken");
    let mut tx = Begun::on(db).await.unwrap();
    take().run(&mut tx, at(2)).await.unwrap();
    take().run(&mut tx, at(2)).await.expect("as often as it likes");
    assert_eq!(shelf(db).await, (8, Some("taken".into()), Some(0), Some(2)));
    let mut tx = Begun::on(db).await.unwrap();
    Update::of("shelf", "id", 1)
        .set("was", 1)
        .set("note", Value::Null)
        .run(&mut tx, at(3))
        .await
        .unwrap();
    assert_eq!(shelf(db).await, (8, None, Some(0), Some(3)));
    run(db, "UPDATE shelf SET note = 'taken', fence_token = 2 WHERE id = 1").await;
}

async fn each_refusal_is_its_own(db: &mut dyn Connection) {
    let mut tx = Begun::on(db).await.unwrap();
    let same = Update::of("shelf", "id", 1).set("note", "taken");
    same.run(&mut tx, at(2)).await.expect("nothing to change is not stale");
    let stale = same.run(&mut tx, at(1)).await.unwrap_err();
    assert_eq!(stale.stale_mark().map(|stale| stale.newest), Some(at(2)));
    assert!(stale.to_string().starts_with("write to a row of shelf in "), "{stale}");

    let missing = Update::of("shelf", "id", 3).set("qty", 0).run(&mut tx, at(9)).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Missing);
    assert!(missing.to_string().ends_with("there is no row whose id is that"), "{missing}");

    same.run(&mut tx, Mark { epoch: Epoch(1), ..at(1) }).await.expect("a later epoch");
    let other = same.run(&mut tx, at(5)).await.unwrap_err();
    assert!(matches!(other.kind(), ErrorKind::OtherEpoch(_)), "{other:?}");

    let two = Update::of("shelf", "kind", 1).add("qty", 1);
    let error = two.run(&mut tx, Mark { epoch: Epoch(2), ..at(1) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);

    run(db, "UPDATE shelf SET fence_token = 5, fence_epoch = NULL WHERE id = 2").await;
    let mut tx = Begun::on(db).await.unwrap();
    let corrupt = Update::of("shelf", "id", 2).set("qty", 0).run(&mut tx, at(9)).await.unwrap_err();
    assert_eq!(corrupt.kind(), ErrorKind::Corrupt, "{corrupt:?}");
}

/// Each in a transaction of its own: PostgreSQL takes nothing more after one of these.
async fn what_is_not_there(driver: &Driver, db: &mut dyn Connection) {
    run(db, "CREATE TABLE plain (id BIGINT)").await;
    let cases = [
        (Update::of("plain", "id", 1).set("id", 1), ErrorKind::NoColumn),
        (Update::of("shelf", "id", 1).set("absent", 1), ErrorKind::NoColumn),
        (Update::of("shelf", "id", 1).fenced_by("epoch", "token"), ErrorKind::NoColumn),
        (Update::of("nowhere", "id", 1).set("qty", 1), ErrorKind::NoTable),
        (Update::of("shelf; DROP TABLE shelf", "id", 1), ErrorKind::Usage),
        (Update::of("shelf", "id = id --", 1), ErrorKind::Usage),
    ];
    for (update, kind) in cases {
        let mut tx = begin(db).await;
        let error = update.run(&mut tx, at(1)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        run(db, "ROLLBACK").await;
    }
    if driver.engine == Engine::Postgres {
        let mut tx = begin(db).await;
        Update::of("public.shelf", "id", 1).set("qty", 1).run(&mut tx, at(1)).await.unwrap();
        run(db, "ROLLBACK").await;
    }
}
