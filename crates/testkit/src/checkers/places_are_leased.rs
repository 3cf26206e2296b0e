//! Law 6: a waiter that says nothing is not waited for longer than its place lasts: the lock never
//! goes to one that was not heard within its place term.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::{ClaimId, Moment};

use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "places_are_leased";

/// See the [module](self).
///
/// # Errors
///
/// The first silent waiter that was served.
pub fn check(history: &History) -> Verdict {
    let mut heard: BTreeMap<ClaimId, (Moment, Duration)> = BTreeMap::new();
    for (index, event) in history.events.iter().enumerate() {
        let Some(claim) = event.claim else { continue };
        match event.what {
            What::Queued { place, judged, .. } => {
                heard.insert(claim, (judged, place));
            }
            What::Heard { judged } => {
                if let Some((last, _)) = heard.get_mut(&claim) {
                    *last = (*last).max(judged);
                }
            }
            What::Ended { .. } => drop(heard.remove(&claim)),
            What::Admitted { judged, .. } => {
                let Some((last, place)) = heard.remove(&claim) else { continue };
                if last + place < judged {
                    let silent = judged.since(last);
                    return broken(PROMISE, index, format!("{claim} was silent for {silent:?}"));
                }
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
    fn convicts_a_lock_for_the_dead() {
        let mut script = Script::new();
        script.queued(1, 1).admitted(1, Mode::Exclusive, 1); // admitted at 10, its place ended at 4
        assert_eq!(check(&script.history).unwrap_err().event, 1);
    }

    #[test]
    fn passes_one_that_says_that_it_lives() {
        let mut script = Script::new();
        script.queued(1, 1).heard(1, 4).heard(1, 7).admitted(1, Mode::Exclusive, 1);
        assert_eq!(check(&script.history), Ok(()));
    }
}
