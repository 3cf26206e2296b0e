//! Reads the record kept with a resource.

use leasehold_core::{Error, Record, ResourceName, Result};

use crate::entry::{Reader, column};
use crate::error::Step;
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn read(store: &SqliteStore, resource: &ResourceName) -> Result<Option<Record>> {
    let on = |e: Error| e.on(resource);
    let (_, record) = store.look(|tx| step(tx, resource)).await.map_err(on)?;
    Ok(record)
}

fn step(tx: &mut Tx<'_>, resource: &ResourceName) -> Step<Option<Record>> {
    let mut select = tx.db.prepare_cached(include_str!("read.sql"))?;
    let mut rows = select.query((resource.as_str(), column(tx.now.as_nanos())))?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let mut reader = Reader::new(row, 0, resource);
    let value = reader.bytes()?.to_vec();
    if value.len() > Record::VALUE_MAX {
        return Err(reader.bad("its record is too large"));
    }
    let token = reader.token()?;
    let kept_for = reader.moment()?.since(tx.now);
    Ok(Some(Record { value, token, kept_for }))
}
