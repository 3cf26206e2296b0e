//! Laws 4 and 7: an enter that arrives after its leave makes no ghost, and when everybody has left
//! and all terms have passed, nothing is left.

use std::collections::BTreeMap;

use leasehold_core::{ClaimId, Moment};

use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "no_ghosts";

/// See the [module](self).
///
/// # Errors
///
/// The first ghost.
pub fn check(history: &History) -> Verdict {
    let mut barred: BTreeMap<ClaimId, Moment> = BTreeMap::new();
    for (index, event) in history.events.iter().enumerate() {
        if let What::WentBack { by } = event.what {
            barred.values_mut().for_each(|until| *until = until.before(by));
        }
        let Some(claim) = event.claim else { continue };
        match event.what {
            What::LeaveDecided { term, judged } => {
                barred.insert(claim, judged + term);
            }
            What::Queued { judged, .. } | What::Admitted { judged, .. }
                if barred.get(&claim).is_some_and(|until| *until > judged) =>
            {
                return broken(PROMISE, index, format!("{claim} stands after its leave"));
            }
            What::Remains => {
                return broken(PROMISE, index, format!("{claim} stands when all have left"));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;
    use leasehold_core::Mode;

    #[test]
    fn convicts_an_enter_after_its_leave_and_what_remains() {
        let mut script = Script::new();
        script.leave_decided(1, 10, 5).queued(1, 6);
        assert_eq!(check(&script.history).unwrap_err().event, 1);
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 1).remains(1);
        assert!(check(&script.history).is_err());
    }

    #[test]
    fn passes_a_leave_that_comes_last() {
        let mut script = Script::new();
        script.queued(1, 1).leave_decided(1, 10, 5).queued(2, 6);
        assert_eq!(check(&script.history), Ok(()));
    }
}
