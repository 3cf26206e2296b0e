//! What stands on a resource, for people and tests.

use leasehold_core::{Error, Queue, ResourceName, Result};

use crate::engine::snapshot;
use crate::store::MysqlStore;

pub(crate) async fn inspect(store: &MysqlStore, resource: &ResourceName) -> Result<Queue> {
    let on = |e: Error| e.on(resource);
    let looked = store.lanes.look(snapshot::sql(&store.core.clocks, resource)).await.map_err(on)?;
    Ok(snapshot::read(looked.sets, resource).map_err(on)?.inspect())
}
