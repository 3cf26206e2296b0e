//! Names that were used, in byte order: they are kept in a part of the keys of their own.

use std::sync::Arc;

use leasehold_core::{Page, ResourceName, Result};

use crate::proto::{RANGE, RangeRequest, RangeResponse};
use crate::rpc::Rpc;
use crate::store::Inner;

pub(crate) async fn list(inner: Arc<Inner>, rpc: Rpc, page: Page) -> Result<Vec<ResourceName>> {
    if page.limit == 0 {
        return Ok(vec![]);
    }
    let mut names = Vec::new();
    let mut range = inner.layout.used_range(&page.prefix, page.after.as_ref());
    while range.0 < range.1 {
        let wanted = page.limit as usize - names.len();
        let question = RangeRequest {
            key: range.0.clone(),
            range_end: range.1.clone(),
            limit: i64::try_from(wanted).unwrap_or(i64::MAX),
            keys_only: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = rpc
            .call(RANGE, question)
            .await
            .map_err(|failure| inner.failed(failure).while_doing("list names"))?;
        let Some(last) = answer.kvs.last().map(|kv| kv.key.clone()) else { break };
        // A key that is no name was not written by us.
        let found = answer.kvs.iter().filter_map(|kv| inner.layout.used_name(&kv.key)?.ok());
        names.extend(found);
        if names.len() >= page.limit as usize || answer.kvs.len() < wanted {
            break;
        }
        range.0 = [last.as_slice(), b"\0"].concat();
    }
    Ok(names)
}
