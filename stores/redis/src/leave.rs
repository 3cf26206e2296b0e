//! Ends a claim and hands over.

use leasehold_core::{ClaimRef, Left, Result};

use crate::keys::DECIDING;
use crate::link::Lane;
use crate::scripts::LEAVE;
use crate::store::{RedisStore, micros};
use crate::usual;

pub(crate) async fn leave(store: &RedisStore, claim: &ClaimRef) -> Result<Left> {
    let keys = store.keys(&claim.resource)?;
    if usual::leave(store, claim, &keys).await? {
        store.unsee(claim.id);
        return Ok(Left::Released);
    }
    let [layout, publish, spans] = store.common();
    let (id, term) = (claim.id.to_string(), micros(claim.term));
    let unanswered: &[u8] = if claim.enter_unanswered { b"1" } else { b"0" };
    let args = [layout, publish, spans, id.as_bytes(), &term, unanswered];
    let mut told = store.tell(Lane::Front, &LEAVE, &keys.first(DECIDING), &args).await?;
    store.hub().forget(claim.id);
    let word = told.text()?;
    match word.as_str() {
        "released" => {
            store.unsee(claim.id);
            Ok(Left::Released)
        }
        "gone" => {
            let how = told.ended()?;
            Ok(Left::Gone(store.why(claim.id, &keys, &told, how)))
        }
        word => Err(told.refusal(word, &claim.resource)),
    }
}
