//! Ends a claim and hands over.

use leasehold_core::{ClaimRef, Left, Result};
use serde_json::json;

use crate::answer::left;
use crate::line::Manner;
use crate::quick::Usual;
use crate::store::{PostgresStore, micros};

pub(crate) async fn leave(store: &PostgresStore, claim: &ClaimRef) -> Result<Left> {
    let mut call = json!({
        "verb": "leave",
        "name": claim.resource.as_str(),
        "claim": claim.id.to_string(),
        "term": micros(claim.term),
    });
    if claim.enter_unanswered {
        call["unanswered"] = true.into();
    }
    let (manner, usual) = if claim.enter_unanswered {
        (Manner::Patient, None)
    } else {
        (Manner::Lazy, Some(Usual::Free(claim.id.to_string())))
    };
    let reply = store.front().call_usual(&claim.resource, call.to_string(), manner, usual).await?;
    store.hub().forget(claim.id);
    left(&reply.answer)
}
