//! Law 6: after healing, whoever still wants the resource gets it.

use std::collections::BTreeMap;

use super::{Verdict, broken};
use crate::history::{History, What};

const PROMISE: &str = "progress";

/// See the [module](self). A history that was never healed promises nothing.
///
/// # Errors
///
/// A wish that was neither granted nor given up.
pub fn check(history: &History) -> Verdict {
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let mut healed = false;
    for (index, event) in history.events.iter().enumerate() {
        match event.what {
            What::Wants { wish } => {
                open.insert(wish, index);
            }
            What::Got { wish } | What::GaveUp { wish } => {
                open.remove(&wish);
            }
            What::Healed => healed = true,
            _ => {}
        }
    }
    match open.into_iter().next() {
        Some((wish, index)) if healed => {
            broken(PROMISE, index, format!("wish {wish} was never granted"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::Script;

    #[test]
    fn convicts_a_wish_left_open() {
        let mut script = Script::new();
        script.fate(What::Wants { wish: 1 }).fate(What::Healed);
        assert_eq!(check(&script.history).unwrap_err().event, 0);
    }

    #[test]
    fn passes_wishes_granted_given_up_or_never_healed() {
        let mut script = Script::new();
        script.fate(What::Wants { wish: 1 }).fate(What::Wants { wish: 2 });
        assert_eq!(check(&script.history), Ok(()));
        script.fate(What::Healed).fate(What::Got { wish: 1 }).fate(What::GaveUp { wish: 2 });
        assert_eq!(check(&script.history), Ok(()));
    }
}
