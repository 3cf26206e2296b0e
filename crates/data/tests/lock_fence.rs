//! Lock, fence and write commit or vanish together.
#![allow(clippy::unwrap_used)]

mod lock_common;

use leasehold_core::{Access, Mark, Token};
use leasehold_data::lock::row::Rows;
use leasehold_data::lock::{Error, Key, Wait, advisory};
use leasehold_fence::{Resource, sql};
use leasehold_sql::Transaction;
use lock_common::{LONG, Place, SERVERS, fresh, kill};
use tempfile::tempdir;

const WAIT: Wait = Wait::AtMost(LONG);

#[tokio::test]
async fn lock_fence_and_write_commit_or_vanish_together() {
    let folder = tempdir().unwrap();
    for driver in SERVERS {
        let place = Place::new(driver, folder.path());
        sql::create_table(place.open().await.raw()).await.unwrap();
        for end in ["COMMIT", "ROLLBACK", "kill"] {
            let name = fresh("together");
            let resource = Resource::new(&name).unwrap();
            let mine = Mark::from(Token::new(7).unwrap());
            let older = Mark::from(Token::new(6).unwrap());
            let (mut db, mut other) = (place.open().await, place.open().await);
            let id = db.server_id().await;
            let mut tx = db.begin().await;
            Rows::default().lock(&mut tx, &name, WAIT).await.unwrap();
            if place.is_postgres() {
                advisory::lock(&mut tx, &Key::new(&name).unwrap(), WAIT).await.unwrap();
            }
            sql::enter(&mut tx, &resource, Access::Exclusive, mine).await.unwrap();
            let write = format!("INSERT INTO counter VALUES ('{name}', 1)");
            tx.execute(&write, &[]).await.unwrap();
            let told = Rows::default().lock(&mut other.begin().await, &name, Wait::No).await;
            assert!(matches!(told, Err(Error::Busy { .. })), "{driver:?} {told:?}");
            other.rollback().await;
            match end {
                "kill" => kill(place.engine(), &id),
                end => drop(db.sql(end).await),
            }
            let mut tx = other.begin().await;
            Rows::default().lock(&mut tx, &name, WAIT).await.unwrap();
            if place.is_postgres() {
                advisory::lock(&mut tx, &Key::new(&name).unwrap(), WAIT).await.unwrap();
            }
            // Under the lock all of it is seen, or nothing.
            let marks = sql::marks(&mut tx, &resource).await.unwrap();
            let read = format!("SELECT n FROM counter WHERE name = '{name}'");
            let written = tx.rows(&read, &[]).await.unwrap().len();
            let committed = end == "COMMIT";
            assert_eq!(written == 1, committed, "{driver:?} {end}");
            assert_eq!(
                marks.admit(Access::Exclusive, older).is_err(),
                committed,
                "{driver:?} {end}"
            );
            other.rollback().await;
        }
    }
}
