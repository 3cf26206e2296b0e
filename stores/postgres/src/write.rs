//! Keeps a small record with a resource.

use std::fmt::Write as _;
use std::time::Duration;

use leasehold_core::{ClaimRef, Error, ErrorKind, Record, Result, Written};
use serde_json::json;

use crate::answer::written;
use crate::error::DOING;
use crate::line::Manner;
use crate::store::{PostgresStore, micros};

pub(crate) async fn write(
    store: &PostgresStore,
    claim: &ClaimRef,
    value: &[u8],
    keep: Duration,
) -> Result<Written> {
    if value.len() > Record::VALUE_MAX {
        let (len, max) = (value.len(), Record::VALUE_MAX);
        let detail = format!("the value has {len} bytes: want at most {max}");
        return Err(Error::new(ErrorKind::Usage, DOING, detail));
    }
    let mut hex = String::with_capacity(value.len() * 2);
    for byte in value {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    let call = json!({
        "verb": "write",
        "name": claim.resource.as_str(),
        "claim": claim.id.to_string(),
        "value": hex,
        "keep": micros(keep),
    });
    let reply = store.front().call(&claim.resource, call.to_string(), Manner::Patient).await?;
    written(&reply.answer)
}
