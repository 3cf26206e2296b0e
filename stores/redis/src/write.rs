//! Keeps a small record with a resource.

use std::time::Duration;

use leasehold_core::{ClaimRef, Error, ErrorKind, Record, Result, Written};

use crate::link::Lane;
use crate::scripts::WRITE;
use crate::store::{RedisStore, TERM_MAX, micros};
use crate::told::DOING;

pub(crate) async fn write(
    store: &RedisStore,
    claim: &ClaimRef,
    value: &[u8],
    keep: Duration,
) -> Result<Written> {
    if value.len() > Record::VALUE_MAX {
        let detail =
            format!("the value has {} bytes: want at most {}", value.len(), Record::VALUE_MAX);
        return Err(Error::new(ErrorKind::Usage, DOING, detail));
    }
    let keys = store.keys(&claim.resource)?;
    let [layout, publish, spans] = store.common();
    let (id, keep) = (claim.id.to_string(), micros(keep.min(TERM_MAX)));
    let args = [layout, publish, spans, id.as_bytes(), &keep, value];
    let mut told = store.tell(Lane::Front, &WRITE, &keys.first(8), &args).await?;
    let word = told.text()?;
    match word.as_str() {
        "stored" => Ok(Written::Stored),
        "gone" => told.ended().map(Written::Gone),
        word => Err(told.refusal(word, &claim.resource)),
    }
}
