//! Permits fit their limit, and no slot is out twice: neither as clients believe, nor by the
//! store's order.

use leasehold_core::Mode;

use super::grants::{Grants, Hold};
use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "permits_fit";

/// See the [module](self).
///
/// # Errors
///
/// The first grant that does not fit.
pub fn check(history: &History) -> Verdict {
    let mut grants = Grants::default();
    for (index, event) in history.events.iter().enumerate() {
        grants.follow(event);
        let list = match event.what {
            What::Believes { .. } => &grants.believed,
            What::Admitted { .. } => &grants.admitted,
            _ => continue,
        };
        let Some((new, before)) = list.split_last() else { continue };
        let Mode::Permits { count, limit } = new.mode else { continue };
        let slots = new.slots.as_slice();
        if slots.len() != count as usize || slots.iter().any(|s| *s >= limit) {
            return broken(
                PROMISE,
                index,
                format!("{count} of {limit} permits are slots {slots:?}"),
            );
        }
        let twice = before.iter().find(|other| {
            overlaps(new, other) && other.slots.as_slice().iter().any(|s| slots.contains(s))
        });
        if let Some(other) = twice {
            let how = format!("{} and {} have a slot in common: {slots:?}", new.claim, other.claim);
            return broken(PROMISE, index, how);
        }
    }
    Ok(())
}

fn overlaps(a: &Hold<'_>, b: &Hold<'_>) -> bool {
    a.resource == b.resource && !a.same_grant(b) && !a.excused && !b.excused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;

    #[test]
    fn convicts_a_slot_out_twice_and_one_beyond_the_limit() {
        let mut script = Script::new();
        script.permits(1, &[0], 2, 1).permits(2, &[1], 2, 2).permits(3, &[0], 2, 3);
        assert_eq!(check(&script.history).unwrap_err().event, 2);
        let mut script = Script::new();
        script.permits(1, &[2], 2, 1);
        assert!(check(&script.history).is_err());
    }

    #[test]
    fn passes_slots_that_come_back() {
        let mut script = Script::new();
        script.permits(1, &[0], 2, 1).permits(2, &[1], 2, 2).ceases(1).permits(3, &[0], 2, 3);
        assert_eq!(check(&script.history), Ok(()));
    }
}
