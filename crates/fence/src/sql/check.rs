//! Checking a mark against its row, and raising it.

use leasehold_core::{Access, Epoch, Mark, Marks, Token};
use leasehold_sql::{Engine, Row, Transaction, Value};

use super::failed::failed;
use super::texts::{epoch, key, raise, texts, token};
use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

pub(super) async fn enter<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    access: Access,
    mark: Mark,
    doing: &str,
) -> Result<()> {
    if tx.engine() == Engine::Sqlite {
        return enter_sqlite(tx, of, access, mark, doing).await;
    }
    if raised(tx, of, access, mark, doing).await? {
        return Ok(());
    }
    // Refused, damaged, or on MySQL not there yet. Whichever it is, nobody changes it now.
    match locked(tx, of, doing).await? {
        Some(marks) => {
            marks.admit(access, mark).map_err(|stale| Error::stale(doing, stale))?;
        }
        None => {
            let make = texts(tx.engine(), doing)?.make;
            let key = key(tx.engine(), of);
            tx.execute(make, &key).await.map_err(|error| failed(doing, error))?;
        }
    }
    if raised(tx, of, access, mark, doing).await? { Ok(()) } else { Err(not_raised(doing)) }
}

/// The one step that checks and raises: whether the access passed.
async fn raised<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    access: Access,
    mark: Mark,
    doing: &str,
) -> Result<bool> {
    let engine = tx.engine();
    let texts = texts(engine, doing)?;
    let statement = match access {
        Access::Exclusive => texts.exclusive,
        Access::Shared => texts.shared,
    };
    let values = raise(engine, of, access, mark);
    if engine == Engine::Postgres {
        let rows = tx.rows(statement, &values).await.map_err(|error| failed(doing, error))?;
        return Ok(rows.first().and_then(|row| row.int(0)) == Some(1));
    }
    let changed = tx.execute(statement, &values).await.map_err(|error| failed(doing, error))?;
    Ok(changed == 1)
}

/// Under the write lock nobody else is there, so the marks are read, checked, and written only
/// where they change.
async fn enter_sqlite<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    access: Access,
    mark: Mark,
    doing: &str,
) -> Result<()> {
    let marks = locked(tx, of, doing).await?.unwrap_or_default();
    let raised = marks.admit(access, mark).map_err(|stale| Error::stale(doing, stale))?;
    if raised == marks {
        return Ok(());
    }
    let [name, slot] = key(Engine::Sqlite, of);
    let values = [
        name,
        slot,
        raised.exclusive.map(epoch).into(),
        raised.exclusive.map(token).into(),
        raised.shared.map(epoch).into(),
        raised.shared.map(token).into(),
    ];
    let statement = texts(Engine::Sqlite, doing)?.exclusive;
    match tx.execute(statement, &values).await.map_err(|error| failed(doing, error))? {
        1 => Ok(()),
        _ => Err(not_raised(doing)),
    }
}

/// The marks in a row that is held to COMMIT. PostgreSQL answers no marks for no row.
pub(super) async fn locked<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    doing: &str,
) -> Result<Option<Marks>> {
    let texts = texts(tx.engine(), doing)?;
    if tx.engine() == Engine::Sqlite {
        let key = key(Engine::Sqlite, of);
        tx.execute(texts.make, &key).await.map_err(|error| failed(doing, error))?;
    }
    read(tx, of, texts.lock, doing).await
}

pub(super) async fn read<T: Transaction + ?Sized>(
    tx: &mut T,
    of: &Resource,
    statement: &str,
    doing: &str,
) -> Result<Option<Marks>> {
    let key = key(tx.engine(), of);
    let rows = tx.rows(statement, &key).await.map_err(|error| failed(doing, error))?;
    let Some(row) = rows.first() else { return Ok(None) };
    match (mark_of(row, 0), mark_of(row, 2)) {
        (Ok(exclusive), Ok(shared)) => Ok(Some(Marks { exclusive, shared })),
        _ => Err(corrupt(doing)),
    }
}

/// The columns hold something that is no mark.
pub(super) struct NoMark;

/// One mark of a row, checked: the table's own checks may have been removed.
pub(super) fn mark_of(row: &Row, at: usize) -> Result<Option<Mark>, NoMark> {
    let (epoch, token) = match (row.get(at), row.get(at + 1)) {
        (Some(Value::Null), Some(Value::Null)) => return Ok(None),
        (Some(Value::Int(epoch)), Some(Value::Int(token))) => (*epoch, *token),
        _ => return Err(NoMark),
    };
    let token = u64::try_from(token).ok().and_then(Token::new);
    match (u32::try_from(epoch), token) {
        (Ok(epoch), Some(token)) => Ok(Some(Mark { epoch: Epoch(epoch), token })),
        _ => Err(NoMark),
    }
}

fn corrupt(doing: &str) -> Error {
    let text = format!(
        "{doing}: its row in leasehold_fence is corrupt and is not trusted; find out who wrote it, \
         then set it to the newest token given out"
    );
    Error::new(ErrorKind::Corrupt, text)
}

fn not_raised(doing: &str) -> Error {
    let text = format!(
        "{doing}: its mark cannot be raised; look for a trigger or rule on leasehold_fence"
    );
    Error::new(ErrorKind::Corrupt, text)
}
