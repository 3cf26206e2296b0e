//! Twenty requests find the cache expired; and one that rebuilds it falls asleep over it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Lease, Mark};
use leasehold_fence::{Access, Resource};
use tokio::sync::Barrier;

use crate::Result;
use crate::db::{Db, Pool};
use crate::way::{Way, beyond, together};

const REQUESTS: usize = 20;
const LOCK: &str = "cache/report";

/// The stampede both ways, then the late write both ways.
///
/// # Errors
///
/// What the database or the store of locks says.
pub async fn run(db: &Db) -> Result<Vec<Way>> {
    Ok(vec![
        stampede(db, false).await?,
        stampede(db, true).await?,
        late_write(db, false).await?,
        late_write(db, true).await?,
    ])
}

async fn prepare(pool: &Pool) -> Result<()> {
    pool.run(
        "DROP TABLE IF EXISTS cache, rebuilt;
         CREATE TABLE cache (name text PRIMARY KEY, value text NOT NULL, is_fresh bool NOT NULL);
         CREATE TABLE rebuilt (name text NOT NULL);
         INSERT INTO cache VALUES ('report', 'old', false)",
    )
    .await
}

async fn stampede(db: &Db, is_right: bool) -> Result<Way> {
    prepare(&db.pool).await?;
    let locks = db.locks().await?;
    let all_have_looked = Arc::new(Barrier::new(REQUESTS));
    let request = |pool: Pool, locks: Client, all_have_looked: Arc<Barrier>| async move {
        let found = look(&pool).await?;
        all_have_looked.wait().await;
        match found {
            Some(value) => Ok(value),
            None if is_right => one_rebuilds(&pool, &locks).await,
            None => rebuild(&pool).await,
        }
    };
    let requests = (0..REQUESTS)
        .map(|_| request(db.pool.clone(), locks.clone(), Arc::clone(&all_have_looked)));
    let values = together(requests).await?;
    let rebuilt = db.pool.number("SELECT count(*) FROM rebuilt").await?;
    let old = u64::try_from(values.iter().filter(|value| *value != "new").count())?;
    let saw = format!("{REQUESTS} requests, rebuilt {rebuilt} times");
    let failures = beyond(rebuilt, 1) + old;
    Ok(if is_right {
        Way::right("one rebuilds under a lock; the others wait, and look again", saw, failures)
    } else {
        Way::wrong("whoever finds it expired rebuilds it", saw, failures)
    })
}

/// What is there, if it is fresh.
async fn look(pool: &Pool) -> Result<Option<String>> {
    let statement = "SELECT value FROM cache WHERE name = 'report' AND is_fresh";
    let row = pool.get().await?.query_opt(statement, &[]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

async fn rebuild(pool: &Pool) -> Result<String> {
    pool.run(
        "INSERT INTO rebuilt VALUES ('report');
         UPDATE cache SET value = 'new', is_fresh = true WHERE name = 'report'",
    )
    .await?;
    Ok("new".to_owned())
}

async fn one_rebuilds(pool: &Pool, locks: &Client) -> Result<String> {
    let lease = locks.lock(LOCK).wait(Duration::from_secs(30)).acquire().await?;
    // Whoever waited for the lock waited for the value.
    let value = match look(pool).await? {
        Some(value) => value,
        None => lease.run(rebuild(pool)).await??,
    };
    let _ = lease.release().await;
    Ok(value)
}

/// The first holder computes a value and is paused for longer than its term; a second one writes a
/// newer value; then the first goes on.
async fn late_write(db: &Db, is_right: bool) -> Result<Way> {
    prepare(&db.pool).await?;
    leasehold_fence::sql::create_table(&mut **db.pool.get().await?).await?;

    let (first, second) = (db.locks().await?, db.locks().await?);
    let paused = hold(&first).await?;
    // As after a pause: another may hold while the first believes nothing of it yet.
    first.break_(LOCK, None, true).await?;
    let awake = hold(&second).await?;
    write(&db.pool, is_right, awake.mark(), "new").await?;
    let late = write(&db.pool, is_right, paused.mark(), "old").await?;
    let value = look(&db.pool).await?.unwrap_or_default();
    let said = if late { "written" } else { "refused" };
    let saw = format!("the late write was {said}, the value is {value}");
    let failures = u64::from(late) + u64::from(value != "new");
    Ok(if is_right {
        Way::right("each write shows its token to a fence in its own transaction", saw, failures)
    } else {
        Way::wrong("the lock is trusted", saw, failures)
    })
}

async fn hold(locks: &Client) -> Result<Lease> {
    Ok(locks.lock(LOCK).wait(Duration::from_secs(30)).acquire().await?)
}

/// Whether it was written.
async fn write(pool: &Pool, is_fenced: bool, mark: Mark, value: &str) -> Result<bool> {
    let mut connection = pool.get().await?;
    let mut tx = connection.transaction().await?;
    if is_fenced {
        let resource = Resource::new(LOCK)?;
        match leasehold_fence::sql::enter(&mut *tx, &resource, Access::Exclusive, mark).await {
            Ok(()) => {}
            Err(error) if error.stale_mark().is_some() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    let update = "UPDATE cache SET value = $1, is_fresh = true WHERE name = 'report'";
    tx.execute(update, &[&value]).await?;
    tx.commit().await?;
    Ok(true)
}
