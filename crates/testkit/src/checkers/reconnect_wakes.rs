//! Law 6: every reconnect wakes every waiter once: it looks again at once, since it may have missed
//! its word.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_core::{ClaimId, Moment};

use super::{Verdict, broken};
use crate::history::{Answer, History, Verb, What, Who};

const PROMISE: &str = "reconnect_wakes";
/// "At once", for a client that runs.
const AT_ONCE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Client {
    /// Claims whose last answer was to wait.
    waiting: BTreeSet<ClaimId>,
    /// Claims that were granted or withdrawn: a late answer makes no waiter of them.
    left: BTreeSet<ClaimId>,
    /// Calls in flight, by claim: an answer that is under way counts as a look.
    in_flight: BTreeMap<u64, ClaimId>,
    /// Claims that have to look by then.
    must_look: BTreeMap<ClaimId, Moment>,
}

/// See the [module](self).
///
/// # Errors
///
/// The first waiter that slept on.
pub fn check(history: &History) -> Verdict {
    let mut clients: BTreeMap<Who, Client> = BTreeMap::new();
    for (index, event) in history.events.iter().enumerate() {
        let late = clients.values().find_map(|c| {
            c.must_look.iter().find(|(_, by)| **by < event.at).map(|(claim, _)| *claim)
        });
        if let Some(claim) = late {
            return broken(PROMISE, index, format!("{claim} slept on after a reconnect"));
        }
        if matches!(event.who, Who::Client(_)) {
            clients.entry(event.who).or_default().follow(event.claim, event.at, &event.what);
        }
    }
    Ok(())
}

impl Client {
    fn follow(&mut self, claim: Option<ClaimId>, at: Moment, what: &What) {
        match (what, claim) {
            (What::Sent { call, verb }, Some(claim)) => {
                self.must_look.remove(&claim);
                self.in_flight.insert(*call, claim);
                if *verb == Verb::Leave {
                    self.waiting.remove(&claim);
                    self.left.insert(claim);
                }
            }
            (What::Returned { call, answer }, Some(claim)) => {
                self.in_flight.remove(call);
                match answer {
                    Answer::Waiting(_) if self.left.contains(&claim) => {}
                    Answer::Waiting(_) => drop(self.waiting.insert(claim)),
                    Answer::Unknown => {}
                    _ => drop(self.waiting.remove(&claim)),
                }
            }
            (What::Believes { .. }, Some(claim)) => {
                self.left.insert(claim);
                self.waiting.remove(&claim);
                self.must_look.remove(&claim);
            }
            // The claim has ended: it is withdrawn, or was given up.
            (What::GaveUp { .. }, Some(claim)) => {
                self.waiting.remove(&claim);
                self.must_look.remove(&claim);
            }
            (What::Paused, _) => self.must_look.clear(),
            (What::Reconnected, _) => {
                let looking: BTreeSet<ClaimId> = self.in_flight.values().copied().collect();
                let asleep = self.waiting.difference(&looking);
                self.must_look = asleep.map(|claim| (*claim, at + AT_ONCE)).collect();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;
    use leasehold_core::Ticket;

    fn waits(script: &mut Script) {
        script.sent(1, Verb::Enter).returned(Answer::Waiting(Ticket(1)));
        script.client(1, What::Reconnected);
    }

    #[test]
    fn convicts_a_waiter_that_sleeps_on() {
        let mut script = Script::new();
        waits(&mut script);
        script.fate(What::Healed);
        assert_eq!(check(&script.history).unwrap_err().event, 3);
    }

    #[test]
    fn passes_one_that_looks_and_one_that_cannot() {
        let mut script = Script::new();
        waits(&mut script);
        script.at_once().sent(1, Verb::Renew).returned(Answer::Waiting(Ticket(1)));
        script.client(1, What::Reconnected).at_once().client(1, What::Paused).fate(What::Healed);
        assert_eq!(check(&script.history), Ok(()));
    }
}
