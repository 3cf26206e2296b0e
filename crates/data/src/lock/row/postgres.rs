//! Row locks of PostgreSQL. Everything is done behind a savepoint.

use std::time::Duration;

use leasehold_core::ResourceName;
use leasehold_sql::{Class, Engine, Row, Transaction, Value};

use super::{Rows, first};
use crate::lock::wait::Left;
use crate::lock::{Error, Result, Wait, bound, savepoint};

/// How often rows that were made are found gone again before that counts as busy.
const ROUNDS: usize = 8;

/// How long another's making of a row is waited for where there is no wait: to be told busy for less,
/// it would be enough that the table is just being extended.
const MAKING: Duration = Duration::from_millis(100);

/// Names hold no control characters: a line each.
fn lines(names: &[ResourceName]) -> Value {
    let lines: Vec<&str> = names.iter().map(ResourceName::as_str).collect();
    Value::Text(lines.join("\n"))
}

pub(super) async fn create<T>(tx: &mut T, statement: &str) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    savepoint::set(tx).await?;
    let made = match tx.execute(statement, &[]).await {
        Ok(_) => Ok(()),
        // Somebody makes it at the same time: IF NOT EXISTS looks before, and not at the end.
        Err(error) if error.class() == Class::Duplicate || error.code() == Some("42P07") => {
            savepoint::back(tx).await
        }
        Err(error) => Err(error.into()),
    };
    savepoint::end(tx, made).await
}

pub(super) async fn make<T>(tx: &mut T, rows: &Rows, names: &[ResourceName]) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    savepoint::set(tx).await?;
    let text = rows.text(include_str!("../sql/postgres/row_make.sql"), Engine::Postgres);
    let made = tx.execute(&text, &[lines(names)]).await.map(drop).map_err(|e| rows.failed(e));
    savepoint::end(tx, made).await
}

pub(super) async fn lock<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
    wait: Wait,
) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    savepoint::set(tx).await?;
    let taken = take(tx, rows, names, wait).await;
    savepoint::end(tx, taken).await
}

/// What one attempt came to.
enum Attempt {
    Taken,
    /// Some names have no row.
    Missing,
    Busy,
}

/// Tries without a wait, then with one; makes the rows that are missing. Each attempt begins with
/// nothing locked, so that locks are always taken in the order of their names.
async fn take<T>(tx: &mut T, rows: &Rows, names: &[ResourceName], wait: Wait) -> Result<()>
where
    T: Transaction + Send + ?Sized,
{
    let left = wait.begin();
    let mut may_wait = false;
    for _ in 0..ROUNDS {
        let attempt = if may_wait {
            let Some(time) = left.time() else { break };
            let before = bound::set(tx, time).await?;
            let attempt = select(tx, rows, names, true).await?;
            if matches!(attempt, Attempt::Taken) {
                bound::restore(tx, before).await?;
            }
            attempt
        } else {
            select(tx, rows, names, false).await?
        };
        match attempt {
            Attempt::Taken => return Ok(()),
            Attempt::Busy if may_wait || left.time().is_none() => break,
            Attempt::Busy => {
                savepoint::back(tx).await?;
                may_wait = true;
            }
            Attempt::Missing => {
                savepoint::back(tx).await?;
                if !insert(tx, rows, &lines(names), left).await? {
                    break;
                }
            }
        }
    }
    Err(wait.refused(first(names), false))
}

async fn select<T>(tx: &mut T, rows: &Rows, names: &[ResourceName], waits: bool) -> Result<Attempt>
where
    T: Transaction + Send + ?Sized,
{
    let file = if waits {
        include_str!("../sql/postgres/row_wait.sql")
    } else {
        include_str!("../sql/postgres/row_nowait.sql")
    };
    match tx.rows(&rows.text(file, Engine::Postgres), &[lines(names)]).await {
        Ok(found) => {
            check_isolation(&found)?;
            let all = found.len() == names.len();
            Ok(if all { Attempt::Taken } else { Attempt::Missing })
        }
        Err(error) if bound::is_over(&error) => Ok(Attempt::Busy),
        Err(error) => Err(rows.failed(error)),
    }
}

/// Makes rows, which are then locked; `false` if another is making one and the wait is over.
async fn insert<T>(tx: &mut T, rows: &Rows, lines: &Value, left: Left) -> Result<bool>
where
    T: Transaction + Send + ?Sized,
{
    let before = bound::set(tx, left.time().unwrap_or(MAKING)).await?;
    let text = rows.text(include_str!("../sql/postgres/row_make.sql"), Engine::Postgres);
    match tx.execute(&text, std::slice::from_ref(lines)).await {
        Ok(_) => bound::restore(tx, before).await.map(|()| true),
        Err(error) if bound::is_over(&error) => Ok(false),
        Err(error) => Err(rows.failed(error)),
    }
}

pub(super) async fn first_free<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
) -> Result<Option<ResourceName>>
where
    T: Transaction + Send + ?Sized,
{
    savepoint::set(tx).await?;
    let taken = skip_locked(tx, rows, names).await;
    savepoint::end(tx, taken).await
}

async fn skip_locked<T>(
    tx: &mut T,
    rows: &Rows,
    names: &[ResourceName],
) -> Result<Option<ResourceName>>
where
    T: Transaction + Send + ?Sized,
{
    let free = rows.text(include_str!("../sql/postgres/row_free.sql"), Engine::Postgres);
    let found = tx.rows(&free, &[lines(names)]).await.map_err(|e| rows.failed(e))?;
    check_isolation(&found)?;
    if let Some(name) = found.first().and_then(|row| row.text(0)) {
        return Ok(Some(ResourceName::new(name)?));
    }
    let missing = rows.text(include_str!("../sql/postgres/row_missing.sql"), Engine::Postgres);
    let missing = tx.rows(&missing, &[lines(names)]).await.map_err(|e| rows.failed(e))?;
    check_isolation(&missing)?;
    for row in &missing {
        let Some(name) = row.text(0) else { continue };
        let name = [ResourceName::new(name)?];
        // Nothing is locked yet: the savepoint may be gone back to, also by an attempt.
        match take(tx, rows, &name, Wait::No).await {
            Ok(()) => return Ok(name.into_iter().next()),
            Err(Error::Busy { .. }) => savepoint::back(tx).await?,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn check_isolation(rows: &[Row]) -> Result<()> {
    bound::check_isolation(rows.first().and_then(|row| row.text(1)))
}
