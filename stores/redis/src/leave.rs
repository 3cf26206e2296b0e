//! Ends a claim and hands over.

use leasehold_core::{ClaimRef, Left, Result};

use crate::keys::{DECIDING, foreign_channel};
use crate::link::Lane;
use crate::scripts::LEAVE;
use crate::store::{RedisStore, micros};

pub(crate) async fn leave(store: &RedisStore, claim: &ClaimRef) -> Result<Left> {
    let keys = store.keys(&claim.resource)?;
    let mut args = store.common().to_vec();
    args.extend([
        foreign_channel(store.layout(), &claim.resource),
        claim.id.to_string().into_bytes(),
        micros(claim.term),
        if claim.enter_unanswered { b"1".to_vec() } else { b"0".to_vec() },
    ]);
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
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
