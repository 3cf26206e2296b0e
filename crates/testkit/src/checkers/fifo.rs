//! Fairness: nobody is admitted past a claim that was queued before and still waits, but a holder
//! that enters again what it holds.

use leasehold_core::ClaimId;

use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "fifo";

/// See the [module](self).
///
/// # Errors
///
/// The first that was passed.
pub fn check(history: &History) -> Verdict {
    let mut waiting: Vec<(&str, ClaimId)> = Vec::new();
    for (index, event) in history.events.iter().enumerate() {
        let (Some(resource), Some(claim)) = (&event.resource, event.claim) else { continue };
        match event.what {
            What::Queued { .. } => waiting.push((resource.as_str(), claim)),
            What::Ended { .. } => waiting.retain(|w| w.1 != claim),
            What::Admitted { reenters, .. } => {
                let first = waiting.iter().find(|w| w.0 == resource.as_str());
                if let Some((_, first)) = first
                    && *first != claim
                    && !reenters
                {
                    return broken(PROMISE, index, format!("{claim} passed {first}"));
                }
                waiting.retain(|w| w.1 != claim);
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
    use leasehold_core::{Ended, Mode};

    #[test]
    fn convicts_one_that_passes() {
        let mut script = Script::new();
        script.queued(1, 1).queued(2, 2).admitted(2, Mode::Exclusive, 1);
        assert_eq!(check(&script.history).unwrap_err().event, 2);
    }

    #[test]
    fn passes_order_and_those_who_left() {
        let mut script = Script::new();
        script.queued(1, 1).queued(2, 2).queued(3, 3).ended(1, Ended::Expired);
        script.admitted(2, Mode::Exclusive, 1).ended(2, Ended::Released);
        script.admitted(3, Mode::Exclusive, 2);
        assert_eq!(check(&script.history), Ok(()));
    }
}
