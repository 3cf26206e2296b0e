//! Law 2: belief in a grant ends before the store ends it, and so before it lets another in.

use super::grants::{Grants, is_force};
use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "belief_ends_first";

/// See the [module](self).
///
/// # Errors
///
/// The first grant that ended at the store while its client believed in it.
pub fn check(history: &History) -> Verdict {
    let mut grants = Grants::default();
    for (index, event) in history.events.iter().enumerate() {
        grants.follow(event);
        let What::Ended { how, .. } = event.what else { continue };
        let believed = grants.believed.iter().find(|h| Some(h.claim) == event.claim);
        if let Some(hold) = believed
            && !hold.excused
            && !is_force(how)
        {
            return broken(PROMISE, index, format!("{} ended ({how}) while believed", hold.claim));
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
    fn convicts_belief_beyond_the_end() {
        for how in [Ended::Expired, Ended::Died] {
            let mut script = Script::new();
            script.believes(1, Mode::Exclusive, 1).ended(1, how);
            assert_eq!(check(&script.history).unwrap_err().event, 1, "{how}");
        }
    }

    #[test]
    fn passes_belief_that_ended_and_what_no_client_can_foresee() {
        let mut script = Script::new();
        script.believes(1, Mode::Exclusive, 1).ceases(1).ended(1, Ended::Expired);
        script.believes(2, Mode::Exclusive, 2).ended(2, Ended::Broken);
        script.believes(3, Mode::Exclusive, 3).upset(3).ended(3, Ended::Expired);
        assert_eq!(check(&script.history), Ok(()));
    }
}
