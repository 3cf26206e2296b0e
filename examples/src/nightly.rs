//! A job of the night on three instances: an invoice for each of four customers.

use std::sync::Arc;

use leasehold::Lease;
use leasehold_data::unique::{Found, Unique};
use leasehold_fence::{Access, Resource};
use tokio::sync::Barrier;

use crate::db::{Db, Pool};
use crate::way::{Way, beyond, together};
use crate::{Error, Result};

const INSTANCES: usize = 3;
const CUSTOMERS: i64 = 4;
const NIGHT: &str = "2026-12-01";

/// Two wrong ways and the right one.
///
/// # Errors
///
/// What the database or the store of locks says.
pub async fn run(db: &Db) -> Result<Vec<Way>> {
    Ok(vec![each_by_its_cron(db).await?, under_a_lock(db).await?, once_a_night(db).await?])
}

async fn prepare(pool: &Pool) -> Result<()> {
    pool.run(
        "DROP TABLE IF EXISTS invoices, nights;
         CREATE TABLE nights (night text PRIMARY KEY);
         CREATE TABLE invoices (customer bigint NOT NULL, night text NOT NULL)",
    )
    .await
}

async fn invoice_all(tx: &deadpool_postgres::Transaction<'_>) -> Result<()> {
    for customer in 1..=CUSTOMERS {
        tx.execute("INSERT INTO invoices VALUES ($1, $2)", &[&customer, &NIGHT]).await?;
    }
    Ok(())
}

async fn each_by_its_cron(db: &Db) -> Result<Way> {
    prepare(&db.pool).await?;
    let instance = |pool: Pool| async move {
        let mut connection = pool.get().await?;
        let tx = connection.transaction().await?;
        invoice_all(&tx).await?;
        Ok(tx.commit().await?)
    };
    together((0..INSTANCES).map(|_| instance(db.pool.clone()))).await?;
    let (saw, failures) = seen(&db.pool).await?;
    Ok(Way::wrong("every instance has the same crontab", saw, failures))
}

/// The clocks of instances differ, and the job is short: one begins when another has finished.
async fn under_a_lock(db: &Db) -> Result<Way> {
    prepare(&db.pool).await?;
    for _ in 0..INSTANCES {
        let locks = db.locks().await?;
        let Some(lease) = locks.lock("nightly").try_acquire().await? else { continue };
        let mut connection = db.pool.get().await?;
        let tx = connection.transaction().await?;
        lease.run(invoice_all(&tx)).await??;
        tx.commit().await?;
        let _ = lease.release().await;
    }
    let (saw, failures) = seen(&db.pool).await?;
    Ok(Way::wrong("under a lock, begun at three moments of three clocks", saw, failures))
}

/// The night is a row, in the transaction of the work. The lock saves the other instances the work;
/// its token keeps out one that was paused and wakes up late.
async fn once_a_night(db: &Db) -> Result<Way> {
    prepare(&db.pool).await?;
    leasehold_fence::sql::create_table(&mut **db.pool.get().await?).await?;

    // The first one fails half-way: what it did is rolled back, and its lock is free.
    let locks = db.locks().await?;
    let lease = locks.lock("nightly").acquire().await?;
    let failed = night(&db.pool, &lease, async |_| Err("the disk is full".into())).await;
    drop(lease);
    let begun_again = u64::from(failed.is_ok());

    let together_at = Arc::new(Barrier::new(INSTANCES));
    let instance = |pool: Pool, url: String, together_at: Arc<Barrier>| async move {
        let locks = leasehold::connect(&url).await?;
        together_at.wait().await;
        let lease = locks.lock("nightly").acquire().await?;
        let is_done = night(&pool, &lease, async |tx| invoice_all(tx).await).await?;
        let _ = lease.release().await;
        Ok(is_done)
    };
    let at_once =
        (0..INSTANCES).map(|_| instance(db.pool.clone(), db.locks_url(), Arc::clone(&together_at)));
    let did = together(at_once).await?.into_iter().filter(|did| *did).count();
    let (saw, failures) = seen(&db.pool).await?;
    let saw = format!("{saw}, by {did} instance, after one that failed half-way");
    let how = "under a lock, the night a unique row in the transaction of the work";
    Ok(Way::right(how, saw, failures + begun_again))
}

/// Whether it was this one that did it.
async fn night(
    pool: &Pool,
    lease: &Lease,
    work: impl AsyncFnOnce(&deadpool_postgres::Transaction<'_>) -> Result<()>,
) -> Result<bool> {
    let mut connection = pool.get().await?;
    let mut tx = connection.transaction().await?;
    // Before the first read: a later holder is told apart from now on.
    let resource = Resource::from(lease.name().clone());
    leasehold_fence::sql::enter(&mut *tx, &resource, Access::Exclusive, lease.mark()).await?;
    let nights = Unique::new("nights", &["night"])?;
    let found = nights.insert_or_find(&mut *tx, &[NIGHT.into()], &[]).await?;
    if !matches!(found, Found::Inserted(_)) {
        return Ok(false);
    }
    lease.run(work(&tx)).await??;
    tx.commit().await?;
    Ok::<bool, Error>(true)
}

async fn seen(pool: &Pool) -> Result<(String, u64)> {
    let invoices = pool.number("SELECT count(*) FROM invoices").await?;
    let saw = format!("{INSTANCES} instances, {CUSTOMERS} customers, {invoices} invoices");
    Ok((saw, beyond(invoices, CUSTOMERS)))
}
