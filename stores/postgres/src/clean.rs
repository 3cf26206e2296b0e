//! Forgets names that were not used for long.

use std::time::Duration;

use leasehold_core::{Cleaned, Page, ResourceName, Result};
use serde_json::{Value, json};

use crate::answer::Read;
use crate::error::strange;
use crate::line::Manner;
use crate::store::{PostgresStore, micros};

/// How many names one transaction looks at: it keeps their rows locked until it is over.
const BATCH: u32 = 64;

pub(crate) async fn clean(
    store: &PostgresStore,
    keep: Duration,
    page: &Page,
    dry: bool,
) -> Result<Cleaned> {
    let mut call = json!({
        "verb": "clean",
        "prefix": page.prefix,
        "after": page.after.as_ref().map_or("", ResourceName::as_str),
        "limit": page.limit.min(BATCH),
        "keep": micros(keep),
    });
    if dry {
        call["dry"] = true.into();
    }
    let reply = store.front().call(&store.any_name(), call.to_string(), Manner::Patient).await?;
    let read = Read(&reply.answer);
    let names = reply.answer.get("names").and_then(Value::as_array);
    let names = names.filter(|_| read.is() == "cleaned").ok_or_else(|| strange("cleaned names"))?;
    let name = |v: &Value| v.as_str().and_then(|n| ResourceName::new(n).ok());
    let all: Option<Vec<ResourceName>> = names.iter().map(name).collect();
    let next = read.maybe_text("next").map(ResourceName::new).transpose();
    Ok(Cleaned {
        names: all.ok_or_else(|| strange("a name"))?,
        next: next.map_err(|_| strange("a name"))?,
    })
}
