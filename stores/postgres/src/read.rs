//! Reads the record kept with a resource.

use std::time::Duration;

use leasehold_core::{Record, ResourceName, Result, Token};

use crate::error::{failed, strange};
use crate::line::Text;
use crate::store::{PostgresStore, statement};

pub(crate) async fn read(store: &PostgresStore, resource: &ResourceName) -> Result<Option<Record>> {
    let params = vec![Text::One(resource.as_str().to_owned())];
    let rows = store.front().query(statement(store, include_str!("sql/read.sql")), params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let get = |e| failed(e).into_error();
    let value: Vec<u8> = row.try_get(0).map_err(get)?;
    let token: i64 = row.try_get(1).map_err(get)?;
    let kept_us: i64 = row.try_get(2).map_err(get)?;
    if value.len() > Record::VALUE_MAX {
        return Err(strange("its record is too large"));
    }
    let token = u64::try_from(token).ok().and_then(Token::new).ok_or_else(|| strange("token"))?;
    let kept_for = Duration::from_micros(u64::try_from(kept_us).unwrap_or(0));
    Ok(Some(Record { value, token, kept_for }))
}
