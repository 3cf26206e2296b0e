//! No two conflicting holds overlap: neither as clients believe, nor by the store's order.

use leasehold_core::Mode;

use super::grants::{Grants, Hold};
use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "exclusion";

/// See the [module](self).
///
/// # Errors
///
/// The first two holds that overlap.
pub fn check(history: &History) -> Verdict {
    let mut grants = Grants::default();
    for (index, event) in history.events.iter().enumerate() {
        grants.follow(event);
        let (list, how) = match event.what {
            What::Believes { .. } => (&grants.believed, "believes to hold"),
            What::Admitted { .. } => (&grants.admitted, "is admitted"),
            _ => continue,
        };
        let Some((new, before)) = list.split_last() else { continue };
        if let Some(other) = before.iter().find(|other| conflict(new, other)) {
            let (new, other) = (new.claim, other.claim);
            return broken(PROMISE, index, format!("{new} {how} beside {other}"));
        }
    }
    Ok(())
}

fn conflict(a: &Hold<'_>, b: &Hold<'_>) -> bool {
    let together = matches!(
        (a.mode, b.mode),
        (Mode::Shared, Mode::Shared) | (Mode::Permits { .. }, Mode::Permits { .. })
    );
    a.resource == b.resource && !together && !a.same_grant(b) && !a.excused && !b.excused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;
    use leasehold_core::Ended;

    #[test]
    fn convicts_two_believers_and_two_admitted() {
        let mut script = Script::new();
        script.believes(1, Mode::Exclusive, 1).believes(2, Mode::Exclusive, 2);
        assert_eq!(check(&script.history).unwrap_err().event, 1);
        let mut script = Script::new();
        script.admitted(1, Mode::Shared, 1).admitted(2, Mode::Exclusive, 2);
        assert!(check(&script.history).is_err());
    }

    #[test]
    fn passes_one_after_the_other_readers_reentry_and_the_broken() {
        let mut script = Script::new();
        script.believes(1, Mode::Exclusive, 1).ceases(1).believes(2, Mode::Exclusive, 2).ceases(2);
        script.believes(3, Mode::Shared, 3).believes(4, Mode::Shared, 4).ceases(3).ceases(4);
        script.admitted(5, Mode::Exclusive, 5).ended(5, Ended::Expired);
        script.admitted(6, Mode::Exclusive, 6);
        script.believes(6, Mode::Exclusive, 6).ended(6, Ended::Broken);
        script.believes(7, Mode::Exclusive, 7);
        assert_eq!(check(&script.history), Ok(()));
    }
}
