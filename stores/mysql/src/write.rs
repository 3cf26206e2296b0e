//! Keeps a small record with a resource.

use std::time::Duration;

use leasehold_core::{ClaimRef, ErrorKind, Record, Result, Written};

use crate::desk::{Ask, Told};
use crate::error::made;
use crate::store::MysqlStore;

pub(crate) async fn write(
    store: &MysqlStore,
    claim: &ClaimRef,
    value: &[u8],
    keep: Duration,
) -> Result<Written> {
    let on = |e: leasehold_core::Error| e.on(&claim.resource);
    if value.len() > Record::VALUE_MAX {
        let (len, max) = (value.len(), Record::VALUE_MAX);
        let detail = format!("the value has {len} bytes: want at most {max}");
        return Err(on(made(ErrorKind::Usage, detail)));
    }
    let ask = Ask::Write { claim: claim.clone(), value: value.to_vec(), keep };
    match store.lanes.ask(ask).await.map_err(on)?.told {
        Told::Written(written) => Ok(written),
        _ => Err(on(made(ErrorKind::Bug, "another request was answered"))),
    }
}
