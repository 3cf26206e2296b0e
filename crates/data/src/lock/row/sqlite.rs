//! SQLite has one write lock, of the whole file: that is what a lock of any name takes.

use leasehold_core::ResourceName;
use leasehold_sql::{Class, Engine, Transaction, Value};

use super::{Rows, first};
use crate::lock::wait::millis;
use crate::lock::{Error, Result, Wait};

pub(super) async fn lock<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
    wait: Wait,
) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    check_inside(tx).await?;
    let before = tx.rows("PRAGMA busy_timeout", &[]).await?;
    let before = before.first().and_then(|row| row.int(0)).unwrap_or_default();
    let bound = wait.begin().time().map_or(0, millis);
    set_timeout(tx, bound).await?;
    let taken = write(tx, rows, first(names)).await;
    set_timeout(tx, before).await?;
    match taken {
        Ok(()) => Ok(()),
        Err(error) if error.class() == Class::Busy => Err(wait.refused(first(names), false)),
        Err(error) => Err(rows.failed(error)),
    }
}

pub(super) async fn make<T>(tx: &mut T, rows: &Rows, names: &[ResourceName]) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    for name in names {
        write(tx, rows, name.as_str()).await.map_err(|error| rows.failed(error))?;
    }
    Ok(())
}

/// With one lock for all, the first name is as free as any.
pub(super) async fn first_free<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
) -> Result<Option<ResourceName>>
where
    T: Transaction + Send + ?Sized,
{
    match lock(tx, rows, names, Wait::No).await {
        Ok(()) => Ok(names.first().cloned()),
        Err(Error::Busy { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write<T>(tx: &mut T, rows: &Rows, name: &str) -> leasehold_sql::Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let text = rows.text(include_str!("../sql/sqlite/row_lock.sql"), Engine::Sqlite);
    tx.execute(&text, &[Value::from(name)]).await.map(drop)
}

/// In a transaction another one cannot be begun; outside of one it can, and is taken back.
async fn check_inside<T>(tx: &mut T) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    if tx.execute("BEGIN", &[]).await.is_err() {
        return Ok(());
    }
    tx.execute("ROLLBACK", &[]).await?;
    Err(Error::OutsideTransaction)
}

async fn set_timeout<T>(tx: &mut T, millis: i64) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    // It may be an int of C.
    let millis = millis.clamp(0, i64::from(i32::MAX));
    tx.rows(&format!("PRAGMA busy_timeout = {millis}"), &[]).await?;
    Ok(())
}
