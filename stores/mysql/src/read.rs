//! Reads the record kept with a resource.

use std::time::Duration;

use leasehold_core::{Error, Record, ResourceName, Result};

use crate::cells::Cells;
use crate::lit::{Lit, Sql};
use crate::store::MysqlStore;

pub(crate) async fn read(store: &MysqlStore, resource: &ResourceName) -> Result<Option<Record>> {
    let on = |e: Error| e.on(resource);
    let mut sql = Sql::new();
    let template = store.core.clocks.timed(include_str!("read.sql"));
    sql.fill(&template, &[("name", &Lit::word(resource.as_str()))]);
    let looked = store.lanes.look(sql).await.map_err(on)?;
    let row = looked.sets.into_iter().flat_map(|set| set.rows).next();
    let Some(row) = row else { return Ok(None) };
    let mut cells = Cells::new(row);
    cells.name().map_err(on)?;
    let (value, token) = (cells.bytes()?, cells.maybe_token()?);
    if value.len() > Record::VALUE_MAX {
        return Err(cells.bad("its record is too large"));
    }
    let token = token.ok_or_else(|| cells.bad("its record has no token"))?;
    let (until, now) = (cells.num()?, cells.num()?);
    let kept_for = Duration::from_micros(until.saturating_sub(now));
    Ok((until > now).then_some(Record { value, token, kept_for }))
}
