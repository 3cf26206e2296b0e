//! Law 3: what has ended is never revived, neither at the store nor in the client.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::{ClaimId, Moment};

use super::{Verdict, broken};
use crate::history::{Answer, History, What};

const PROMISE: &str = "death_is_final";

/// See the [module](self).
///
/// # Errors
///
/// The first claim that came back.
pub fn check(history: &History) -> Verdict {
    // Until when the dead are remembered. Ids are used once, so a store may forget them later.
    let mut ended: BTreeMap<ClaimId, Moment> = BTreeMap::new();
    let mut ceased: BTreeSet<ClaimId> = BTreeSet::new();
    let mut until: BTreeMap<ClaimId, Moment> = BTreeMap::new();
    let mut sent_dead: BTreeMap<u64, ClaimId> = BTreeMap::new();
    for (index, event) in history.events.iter().enumerate() {
        if let What::WentBack { by } = event.what {
            ended.values_mut().for_each(|remembered| *remembered = remembered.before(by));
        }
        let Some(claim) = event.claim else { continue };
        if matches!(event.what, What::Queued { .. } | What::Admitted { .. }) {
            sent_dead.retain(|_, dead| *dead != claim);
        }
        let back = match &event.what {
            What::Ended { remembered, .. } => {
                ended.insert(claim, *remembered);
                None
            }
            What::Ceases { .. } => {
                ceased.insert(claim);
                None
            }
            What::Admitted { until: end, judged, .. } => {
                until.insert(claim, *end);
                let dead = ended.remove(&claim).is_some_and(|remembered| remembered > *judged);
                dead.then_some("was admitted after it had ended")
            }
            What::Queued { judged, .. } => {
                let dead = ended.remove(&claim).is_some_and(|remembered| remembered > *judged);
                dead.then_some("was queued after it had ended")
            }
            What::Extended { until: end, judged } => {
                let before = until.insert(claim, *end);
                let dead = before.is_some_and(|b| b <= *judged);
                dead.then_some("was extended after its term had run out")
            }
            What::Believes { .. } => {
                ceased.contains(&claim).then_some("is believed again after belief had ended")
            }
            What::Sent { call, .. } => {
                if ended.contains_key(&claim) {
                    sent_dead.insert(*call, claim);
                }
                None
            }
            What::Returned { call, answer: Answer::Alive | Answer::Granted(_) } => sent_dead
                .contains_key(call)
                .then_some("was asked for after its end, and told alive"),
            _ => None,
        };
        if let Some(how) = back {
            return broken(PROMISE, index, format!("{claim} {how}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;
    use crate::history::Verb;
    use leasehold_core::{Ended, Mode};

    #[test]
    fn convicts_every_way_back() {
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 1).ended(1, Ended::Expired);
        script.admitted(1, Mode::Exclusive, 2);
        assert!(check(&script.history).is_err());
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 1).ended(1, Ended::Expired).sent(1, Verb::Renew);
        script.returned(Answer::Alive);
        assert!(check(&script.history).is_err());
        let mut script = Script::new();
        script.believes(1, Mode::Exclusive, 1).ceases(1).believes(1, Mode::Exclusive, 1);
        assert!(check(&script.history).is_err());
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 1).extended(1, 30, 25);
        assert!(check(&script.history).is_err(), "its term ended at 20");
    }

    #[test]
    fn passes_a_late_answer_and_a_claim_gone() {
        let mut script = Script::new();
        script.admitted(1, Mode::Exclusive, 1).sent(1, Verb::Renew).extended(1, 30, 15);
        script.ended(1, Ended::Expired).returned(Answer::Alive);
        script.sent(1, Verb::Renew).returned(Answer::Gone(Ended::Expired));
        assert_eq!(check(&script.history), Ok(()));
    }
}
