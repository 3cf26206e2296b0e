//! Reads the record of a resource.

use std::time::Duration;

use leasehold_core::{Record, ResourceName, Result};

use crate::link::{Lane, Reply};
use crate::scripts::READ;
use crate::store::RedisStore;
use crate::told::{corrupt, token_of};

pub(crate) async fn read(store: &RedisStore, name: &ResourceName) -> Result<Option<Record>> {
    let keys = store.keys(name)?;
    let mut told = store.tell(Lane::Front, &READ, &[keys.record()], &[]).await?;
    let value = told.item()?;
    if value.is_nil() {
        return Ok(None);
    }
    let value = value.bytes()?.to_vec();
    let token = number(&told.item()?)?;
    let until = number(&told.item()?)?;
    let Some(left) = until.checked_sub(told.server_us).filter(|left| *left > 0) else {
        return Ok(None);
    };
    let kept_for = Duration::from_micros(left);
    Ok(Some(Record { value, token: token_of(token)?, kept_for }))
}

/// A number that a script wrote as text.
pub(crate) fn number(reply: &Reply) -> Result<u64> {
    reply.str()?.parse().map_err(|_| corrupt("a number is not one"))
}
