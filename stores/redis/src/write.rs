//! Keeps a small record with a resource.

use std::time::Duration;

use leasehold_core::{ClaimRef, Error, ErrorKind, Record, Result, Written};

use crate::keys::foreign_channel;
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
    let mut args = store.common().to_vec();
    args.extend([
        foreign_channel(store.layout(), &claim.resource),
        claim.id.to_string().into_bytes(),
        micros(keep.min(TERM_MAX)),
        value.to_vec(),
    ]);
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    let mut told = store.tell(Lane::Front, &WRITE, &keys.first(8), &args).await?;
    let word = told.text()?;
    match word.as_str() {
        "stored" => Ok(Written::Stored),
        "gone" => told.ended().map(Written::Gone),
        word => Err(told.refusal(word, &claim.resource)),
    }
}
