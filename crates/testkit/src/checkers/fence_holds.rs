//! The refusing side: after the first access under a token no older conflicting access is let
//! through, and nobody who holds the resource is refused.

use std::collections::BTreeMap;

use leasehold_core::{Access, Token};

use super::grants::Grants;
use super::{Verdict, broken};
use crate::history::{History, Op, What};

const PROMISE: &str = "fence_holds";

/// The newest accesses that were let through, of any kind, also mere reads.
#[derive(Default)]
struct Passed {
    exclusive: Option<Token>,
    shared: Option<Token>,
}

/// See the [module](self).
///
/// # Errors
///
/// The first stale access let through, or the first holder refused.
pub fn check(history: &History) -> Verdict {
    let mut grants = Grants::default();
    let mut things: BTreeMap<(&str, Option<u32>), Passed> = BTreeMap::new();
    for (index, event) in history.events.iter().enumerate() {
        grants.follow(event);
        let What::Touched { access, token, slot, op, accepted } = event.what else { continue };
        let (Some(resource), Some(claim)) = (&event.resource, event.claim) else { continue };
        let passed = things.entry((resource.as_str(), slot)).or_default();
        if !accepted {
            if grants.admitted.iter().any(|h| h.claim == claim && h.token == token) {
                return broken(PROMISE, index, format!("{claim} holds and was refused"));
            }
            continue;
        }
        let barrier = match access {
            Access::Exclusive => passed.exclusive.max(passed.shared),
            Access::Shared => passed.exclusive,
        };
        if op == Op::Write && barrier.is_some_and(|newest| token < newest) {
            let how = format!("a write of {claim} with {token} passed after {barrier:?}");
            return broken(PROMISE, index, how);
        }
        let own = match access {
            Access::Exclusive => &mut passed.exclusive,
            Access::Shared => &mut passed.shared,
        };
        *own = (*own).max(Some(token));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;
    use leasehold_core::{Ended, Mode};

    #[test]
    fn convicts_a_late_write_after_a_mere_read_and_a_refused_reader() {
        let mut script = Script::new();
        script.touched(2, Access::Exclusive, 2, Op::Read, true);
        script.touched(1, Access::Exclusive, 1, Op::Write, true);
        assert_eq!(check(&script.history).unwrap_err().event, 1);
        let mut script = Script::new();
        script.admitted(1, Mode::Shared, 1).touched(1, Access::Shared, 1, Op::Read, false);
        assert!(check(&script.history).is_err());
    }

    #[test]
    fn passes_refused_ghosts_and_readers_together() {
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 1).ended(1, Ended::Expired);
        script.touched(2, Access::Exclusive, 2, Op::Enter, true);
        script.touched(1, Access::Exclusive, 1, Op::Write, false);
        script.touched(4, Access::Shared, 4, Op::Read, true);
        script.touched(3, Access::Shared, 3, Op::Read, true);
        assert_eq!(check(&script.history), Ok(()));
    }
}
