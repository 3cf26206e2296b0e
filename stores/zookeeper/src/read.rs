//! Reading a record.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Record, ResourceName, Result};

use crate::card::Stored;
use crate::hall::{Hall, data, maybe};
use crate::wire::Op;

pub(crate) async fn read(hall: &Arc<Hall>, resource: &ResourceName) -> Result<Option<Record>> {
    let now = hall.session().await?;
    let path = hall.paths(resource)?.record();
    let sync = hall.wire.call(now.generation, &Op::Sync { path: path.clone() });
    let found = hall.wire.call(now.generation, &Op::Get { path, watch: false });
    let failed = |fail| hall.error(fail);
    sync.answer().await.result.map_err(failed)?;
    let found = maybe(data(found.answer().await.result)).map_err(failed)?;
    let Some((found, stat)) = found else { return Ok(None) };
    let Some(stored) = Stored::read(&found) else { return Ok(None) };
    // Two times of the servers' clock.
    let since = hall.ask_time(now.generation).await?.saturating_sub(stat.mtime);
    let since = Duration::from_millis(u64::try_from(since).unwrap_or(0));
    let kept_for = stored.keep.saturating_sub(since);
    let Stored { token, value, .. } = stored;
    Ok((!kept_for.is_zero()).then_some(Record { value, token, kept_for }))
}
