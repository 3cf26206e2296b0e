//! An operator's force.

use leasehold_core::{Broken, ResourceName, Result, Token};
use serde_json::json;

use crate::answer::Read;
use crate::error::strange;
use crate::line::Manner;
use crate::store::PostgresStore;

pub(crate) async fn break_(
    store: &PostgresStore,
    resource: &ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let mut call = json!({ "verb": "break", "name": resource.as_str() });
    if let Some(token) = expect {
        call["token"] = token.get().into();
    }
    if now {
        call["now"] = true.into();
    }
    let reply = store.front().call(resource, call.to_string(), Manner::Patient).await?;
    let read = Read(&reply.answer);
    let tokens = read.tokens("tokens")?;
    match read.is() {
        "marked" => Ok(Broken::Marked(tokens)),
        "nothing" => Ok(Broken::Nothing { held: tokens }),
        _ => Err(strange("the answer to a break")),
    }
}
