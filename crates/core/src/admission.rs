//! The one predicate on which every primitive stands.
//!
//! A store keeps, per resource, an ordered queue of live claims. An exclusive claim is admitted at
//! the head; a shared one while nothing exclusive stands before it; permits while the sum before it
//! and itself fits the limit. (Curator's `getsTheLock` and etcd's create-revision order are the
//! exclusive case of it.)

use crate::claim::Mode;

/// The predicate, fed with the claims of a queue in order, without those that re-enter (they stand
/// where the grant stands that they re-enter, and add nothing).
///
/// ```
/// use leasehold_core::{Mode, admission::Walk};
///
/// let mut walk = Walk::new();
/// assert!(walk.admits(Mode::Shared));
/// assert!(walk.admits(Mode::Shared));
/// assert!(!walk.admits(Mode::Exclusive)); // readers before it
/// assert!(!walk.admits(Mode::Shared)); // a writer before it
/// assert!(walk.is_full());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Walk {
    any_before: bool,
    exclusive_before: bool,
    permits_before: u32,
    permits_refused: bool,
}

impl Walk {
    /// A walk before the head of a queue.
    pub const fn new() -> Walk {
        Walk {
            any_before: false,
            exclusive_before: false,
            permits_before: 0,
            permits_refused: false,
        }
    }

    /// Whether the next claim in order is admitted, given all that were fed before it.
    pub fn admits(&mut self, mode: Mode) -> bool {
        let admitted = match mode {
            Mode::Exclusive => !self.any_before,
            Mode::Shared => !self.exclusive_before && self.permits_before == 0,
            Mode::Permits { count, limit } => {
                !self.exclusive_before
                    && !self.permits_refused
                    && self.permits_before.saturating_add(count) <= limit
            }
        };
        self.any_before = true;
        match mode {
            Mode::Exclusive => self.exclusive_before = true,
            Mode::Shared => {}
            Mode::Permits { count, .. } => {
                self.permits_before = self.permits_before.saturating_add(count);
                // A large claim that waits is not passed by small ones for ever.
                self.permits_refused |= !admitted;
            }
        }
        admitted
    }

    /// Whether no claim after those fed can be admitted, so that the walk may stop.
    pub const fn is_full(&self) -> bool {
        self.exclusive_before || self.permits_refused
    }
}

/// The lowest `count` numbers from 0 below `limit` that `taken` does not name, for the slots of a
/// permit grant; `None` if there are not so many.
pub fn free_slots(
    count: u32,
    limit: u32,
    taken: impl Iterator<Item = u32>,
) -> Option<crate::answer::Slots> {
    let mut used = alloc::vec![false; limit as usize];
    for slot in taken {
        if let Some(mark) = used.get_mut(slot as usize) {
            *mark = true;
        }
    }
    let free: alloc::vec::Vec<u32> =
        (0..limit).filter(|&slot| !used[slot as usize]).take(count as usize).collect();
    (free.len() == count as usize).then(|| crate::answer::Slots::new(free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn modes() -> impl Strategy<Value = Vec<Mode>> {
        let locks = proptest::collection::vec(
            prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)],
            0..12,
        );
        let permits = (1..6_u32).prop_flat_map(|limit| {
            let permit = (1..=limit).prop_map(move |count| Mode::Permits { count, limit });
            proptest::collection::vec(permit, 0..12)
        });
        prop_oneof![locks, permits]
    }

    proptest! {
        #[test]
        fn the_admitted_never_conflict_and_the_head_is_admitted(queue in modes()) {
            let mut walk = Walk::new();
            let admitted: Vec<Mode> =
                queue.iter().copied().filter(|&m| walk.admits(m)).collect();
            let exclusive = admitted.iter().filter(|&&m| m == Mode::Exclusive).count();
            prop_assert!(exclusive == 0 || admitted.len() == 1);
            let sum: u32 = admitted.iter().map(|m| match m {
                Mode::Permits { count, .. } => *count,
                _ => 0,
            }).sum();
            let limit = match queue.first() {
                Some(Mode::Permits { limit, .. }) => *limit,
                _ => 0,
            };
            prop_assert!(sum <= limit);
            prop_assert_eq!(admitted.is_empty(), queue.is_empty());
        }

        #[test]
        fn nobody_after_a_full_walk_is_admitted(queue in modes()) {
            let mut walk = Walk::new();
            for mode in queue {
                let full = walk.is_full();
                prop_assert!(!(walk.admits(mode) && full));
            }
        }

        #[test]
        fn slots_are_free_and_lowest(taken in proptest::collection::btree_set(0..8_u32, 0..8)) {
            let free = free_slots(2, 8, taken.iter().copied());
            let expected: Vec<u32> = (0..8).filter(|s| !taken.contains(s)).take(2).collect();
            prop_assert_eq!(
                free.map(|s| s.as_slice().to_vec()),
                (expected.len() == 2).then_some(expected)
            );
        }
    }
}
