//! Reading a record.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Error, ErrorKind, Record, ResourceName, Result, Token};

use crate::proto::{RANGE, RangeRequest, RangeResponse};
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::write::Head;

pub(crate) async fn read(
    inner: Arc<Inner>,
    rpc: Rpc,
    name: ResourceName,
) -> Result<Option<Record>> {
    let question = RangeRequest { key: inner.layout.record(&name), ..RangeRequest::default() };
    let answer: RangeResponse = rpc
        .call(RANGE, question)
        .await
        .map_err(|failure| inner.failed(failure).while_doing("read a record"))?;
    let Some(kv) = answer.kvs.into_iter().next() else { return Ok(None) };
    let unfit = || {
        let detail = "its record was not written by leasehold";
        Error::new(ErrorKind::Corrupt, "read a record", detail).on(&name)
    };
    let at = kv.value.iter().position(|byte| *byte == b'\n').ok_or_else(unfit)?;
    let (head, value) = kv.value.split_at(at);
    let head: Head = serde_json::from_slice(head).map_err(|_| unfit())?;
    let token = Token::new(head.token).ok_or_else(unfit)?;
    // The lease counts in whole seconds and may have begun longer than what was asked for.
    let Some(left) = inner.leases.look(&rpc, kv.lease).await? else { return Ok(None) };
    let kept_for = left.ttl.min(Duration::from_millis(head.keep_ms));
    let value = value.get(1..).unwrap_or_default().to_vec();
    Ok(Some(Record { value, token, kept_for }))
}
