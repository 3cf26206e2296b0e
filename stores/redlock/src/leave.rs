//! Ends a claim at all members, also where it was never taken.

use std::sync::Arc;

use leasehold_core::{ClaimRef, Ended, Error, Left, Result, Store};

use crate::core::{Core, worst};

pub(crate) async fn leave(core: Arc<Core>, claim: ClaimRef) -> Result<Left> {
    core.holds_no_more(claim.id);
    let mut asked = core.ask(core.all(), core.within(claim.term), |at, store| {
        let mut named = claim.clone();
        let member = core.members.get(at).cloned();
        named.enter_unanswered |= member.as_ref().is_some_and(|m| m.is_unanswered(claim.id));
        async move {
            let left = store.leave(&named).await?;
            if let Some(member) = member {
                member.has_answered(named.id);
            }
            Ok(left)
        }
    });
    let mut released = 0;
    let mut gone: Vec<Ended> = Vec::new();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    let majority = core.majority();
    let known = |gone: &[Ended]| gone.iter().filter(|how| **how != Ended::Unknown).count();
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(_) if !said.counts => {}
            Ok(Left::Released) => released += 1,
            Ok(Left::Gone(how)) => gone.push(how),
            Err(error) => failed.push((said.at, error)),
        }
        if released >= majority || known(&gone) >= majority {
            break;
        }
    }
    core.has_changed();
    if released + gone.len() < majority {
        return Err(core.too_few(&failed, released + gone.len()).maybe_applied());
    }
    // Where a majority knows that it had ended, what a minority still had was no grant.
    if released > 0 && known(&gone) <= core.minority() {
        return Ok(Left::Released);
    }
    Ok(Left::Gone(worst(gone).unwrap_or(Ended::Unknown)))
}
