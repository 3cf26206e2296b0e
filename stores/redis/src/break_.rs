//! An operator's force.

use leasehold_core::{Broken, ResourceName, Result, Token};

use crate::keys::DECIDING;
use crate::link::Lane;
use crate::scripts::BREAK;
use crate::store::RedisStore;
use crate::told::{Told, token_of};

pub(crate) async fn break_(
    store: &RedisStore,
    name: &ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let keys = store.keys(name)?;
    let [layout, publish, spans] = store.common();
    let expect = expect.map_or(0, |token| token.get()).to_string();
    let args = [layout, publish, spans, expect.as_bytes(), if now { b"1" } else { b"0" }];
    let mut told = store.tell(Lane::Front, &BREAK, &keys.first(DECIDING), &args).await?;
    let word = told.text()?;
    match word.as_str() {
        "marked" => tokens(told).map(Broken::Marked),
        "nothing" => tokens(told).map(|held| Broken::Nothing { held }),
        word => Err(told.refusal(word, name)),
    }
}

fn tokens(mut told: Told) -> Result<Vec<Token>> {
    let mut tokens = Vec::new();
    while let Some(item) = told.next() {
        tokens.push(token_of(u64::try_from(item.int()?).unwrap_or_default())?);
    }
    Ok(tokens)
}
