//! An operator's force, at all members.

use std::sync::Arc;

use leasehold_core::{Broken, Error, ResourceName, Result, Store, Token};

use crate::core::{Core, most};

pub(crate) async fn break_(
    core: Arc<Core>,
    name: ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let mut asked = core.ask(core.all(), core.patient(), |_, store| {
        let name = name.clone();
        async move { store.break_(&name, expect, now).await }
    });
    let mut marked: Vec<Token> = Vec::new();
    let mut held: Vec<Token> = Vec::new();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    // Who holds the same claim with a token of its own, which no majority has confirmed.
    let mut others: Vec<usize> = Vec::new();
    let mut answered = 0;
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(_) if !said.counts => {}
            Ok(Broken::Marked(tokens)) => {
                answered += 1;
                marked.extend(tokens);
            }
            Ok(Broken::Nothing { held: tokens }) => {
                answered += 1;
                if !tokens.is_empty() {
                    others.push(said.at);
                }
                held.extend(tokens);
            }
            Err(error) => failed.push((said.at, error)),
        }
    }
    if marked.len() >= core.majority() && !others.is_empty() {
        let mut asked = core.ask(others, core.patient(), |_, store| {
            let name = name.clone();
            async move { store.break_(&name, None, now).await }
        });
        while asked.next().await.is_some() {}
    }
    core.has_changed();
    if answered < core.majority() {
        return Err(core.too_few(&failed, answered).maybe_applied());
    }
    let marked = agreed(marked, core.majority());
    if marked.is_empty() {
        return Ok(Broken::Nothing { held: agreed(held, core.majority()) });
    }
    Ok(Broken::Marked(marked))
}

/// The tokens that a majority has told, ascending; where there is none, what most have.
fn agreed(tokens: Vec<Token>, majority: usize) -> Vec<Token> {
    let count = |token: &Token| tokens.iter().filter(|other| *other == token).count();
    let mut agreed: Vec<Token> =
        tokens.iter().copied().filter(|token| count(token) >= majority).collect();
    agreed.sort_unstable();
    agreed.dedup();
    if agreed.is_empty() {
        agreed.extend(most(tokens.iter().copied()).map(|(token, _)| token));
    }
    agreed
}
