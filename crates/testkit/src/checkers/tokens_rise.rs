//! Law 1: if grant A ended, or was returned to its caller, before claim B was admitted, then B's
//! token is higher. Re-entry keeps the token.

use std::collections::BTreeMap;

use leasehold_core::{ClaimId, HolderId, Token};

use super::grants::Grants;
use super::{Verdict, broken};
use crate::history::{History, Verb, What};

const PROMISE: &str = "tokens_rise";

/// See the [module](self).
///
/// # Errors
///
/// The first grant whose token is not high enough.
pub fn check(history: &History) -> Verdict {
    let mut grants = Grants::default();
    // The newest token that ended or was returned, by resource.
    let mut done: BTreeMap<&str, Token> = BTreeMap::new();
    // The same, when the claim was first sent: it was admitted later than that.
    let mut when_sent: BTreeMap<ClaimId, Option<Token>> = BTreeMap::new();
    // Whose a token is: its holder may get it again by entering again.
    let mut holders: BTreeMap<(&str, Token), HolderId> = BTreeMap::new();
    for (index, event) in history.events.iter().enumerate() {
        let ended = match event.what {
            What::Ended { .. } | What::Ceases { .. } => {
                let lists = grants.admitted.iter().chain(&grants.believed);
                lists.filter(|h| Some(h.claim) == event.claim).map(|h| h.token).max()
            }
            _ => None,
        };
        grants.follow(event);
        let (Some(resource), Some(claim)) = (&event.resource, event.claim) else { continue };
        let newest = done.get(resource.as_str()).copied();
        match &event.what {
            What::Sent { verb: Verb::Enter, .. } => {
                when_sent.entry(claim).or_insert(newest);
            }
            What::Admitted { token, reenters, holder, .. } => {
                let list = &grants.admitted;
                let outer = list.iter().rev().skip(1).any(|h| {
                    h.holder == *holder && h.resource == resource.as_str() && h.token == *token
                });
                let rises = newest.is_none_or(|n| *token > n);
                holders.insert((resource.as_str(), *token), *holder);
                let good = if *reenters { outer } else { rises };
                if !good {
                    let how = format!("{claim} is admitted with {token} after {newest:?}");
                    return broken(PROMISE, index, how);
                }
            }
            What::Believes { token, holder, .. } => {
                let floor = when_sent.get(&claim).copied().flatten();
                let known = holders.insert((resource.as_str(), *token), *holder);
                let reenters = known == Some(*holder);
                if !reenters && floor.is_some_and(|f| *token <= f) {
                    let how = format!("{claim} got {token}, and {floor:?} came before it was sent");
                    return broken(PROMISE, index, how);
                }
                done.entry(resource.as_str())
                    .and_modify(|d| *d = (*d).max(*token))
                    .or_insert(*token);
            }
            _ => {}
        }
        if let Some(token) = ended {
            done.entry(resource.as_str()).and_modify(|d| *d = (*d).max(token)).or_insert(token);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;
    use leasehold_core::{Ended, Mode};

    #[test]
    fn convicts_a_token_that_does_not_rise() {
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 7).ended(1, Ended::Released);
        script.admitted(2, Mode::Exclusive, 7);
        assert_eq!(check(&script.history).unwrap_err().event, 2);
        let mut script = Script::new();
        script.believes(1, Mode::Exclusive, 7).ceases(1).sent(2, Verb::Enter);
        script.believes(2, Mode::Exclusive, 6);
        assert_eq!(check(&script.history).unwrap_err().event, 3);
    }

    #[test]
    fn passes_rising_tokens_and_readers_whose_answers_cross() {
        let mut script = Script::new();
        script.sent(1, Verb::Enter).sent(2, Verb::Enter);
        script.admitted(1, Mode::Shared, 1).admitted(2, Mode::Shared, 2);
        script.believes(2, Mode::Shared, 2).believes(1, Mode::Shared, 1);
        script.ended(1, Ended::Expired).admitted(3, Mode::Exclusive, 3);
        assert_eq!(check(&script.history), Ok(()));
    }
}
