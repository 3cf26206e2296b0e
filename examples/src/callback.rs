//! A payment provider calls back five times about one payment.

use std::sync::Arc;

use leasehold_data::unique::{Found, Unique};
use tokio::sync::Barrier;

use crate::Result;
use crate::db::{Db, Pool};
use crate::way::{Way, beyond, together};

const DELIVERIES: usize = 5;
const CENTS: i64 = 100;

/// Both ways.
///
/// # Errors
///
/// What the database says.
pub async fn run(db: &Db) -> Result<Vec<Way>> {
    let wrong = {
        prepare(&db.pool, "").await?;
        let all_have_looked = Arc::new(Barrier::new(DELIVERIES));
        let one = |_| deliver_wrong(db.pool.clone(), Arc::clone(&all_have_looked));
        together((0..DELIVERIES).map(one)).await?;
        let (saw, failures) = seen(&db.pool).await?;
        Way::wrong("look whether the event is known, then book it", saw, failures)
    };
    let right = {
        prepare(&db.pool, "PRIMARY KEY").await?;
        together((0..DELIVERIES).map(|_| deliver_right(db.pool.clone()))).await?;
        let (saw, failures) = seen(&db.pool).await?;
        let how = "insert the event under its unique id, and book it in the same transaction";
        Way::right(how, saw, failures)
    };
    Ok(vec![wrong, right])
}

async fn prepare(pool: &Pool, key: &str) -> Result<()> {
    pool.run(&format!(
        "DROP TABLE IF EXISTS events, accounts;
         CREATE TABLE events (id text {key}, cents bigint NOT NULL);
         CREATE TABLE accounts (owner text PRIMARY KEY, cents bigint NOT NULL);
         INSERT INTO accounts VALUES ('ada', 0)"
    ))
    .await
}

async fn deliver_wrong(pool: Pool, all_have_looked: Arc<Barrier>) -> Result<()> {
    let mut connection = pool.get().await?;
    let tx = connection.transaction().await?;
    let known = tx.query("SELECT 1 FROM events WHERE id = 'evt-9'", &[]).await?;
    all_have_looked.wait().await;
    if known.is_empty() {
        tx.execute("INSERT INTO events VALUES ('evt-9', $1)", &[&CENTS]).await?;
        book(&tx).await?;
    }
    Ok(tx.commit().await?)
}

async fn deliver_right(pool: Pool) -> Result<()> {
    let events = Unique::new("events", &["id"])?;
    let mut connection = pool.get().await?;
    let mut tx = connection.transaction().await?;
    match events.insert_or_find(&mut *tx, &["evt-9".into()], &[("cents", CENTS.into())]).await? {
        Found::Inserted(_) => book(&tx).await?,
        Found::Same(_) => {} // booked before: say 200, so that the provider stops
        Found::Other { column } => {
            return Err(format!("the same event, but another {column}").into());
        }
    }
    Ok(tx.commit().await?)
}

async fn book(tx: &deadpool_postgres::Transaction<'_>) -> Result<()> {
    let add = "UPDATE accounts SET cents = cents + $1 WHERE owner = 'ada'";
    tx.execute(add, &[&CENTS]).await?;
    Ok(())
}

async fn seen(pool: &Pool) -> Result<(String, u64)> {
    let cents = pool.number("SELECT cents FROM accounts").await?;
    let saw = format!("{DELIVERIES} deliveries of {CENTS} cents, {cents} booked");
    Ok((saw, beyond(cents / CENTS, 1)))
}
