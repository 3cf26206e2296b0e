//! The protected thing with its fence.

use std::collections::BTreeMap;

use leasehold_core::{Access, ClaimId, Mark, Marks, Mode, Moment, ResourceName, Slots, Token};

use super::bugs::Bug;
use crate::history::{History, Op, What, Who};

/// An access on its way to the thing.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    pub(super) client: usize,
    pub(super) life: u32,
    pub(super) task: usize,
    /// Whether the client waits for the answer.
    pub(super) answered: bool,
    pub(super) resource: ResourceName,
    pub(super) claim: ClaimId,
    pub(super) mode: Mode,
    pub(super) token: Token,
    pub(super) slots: Slots,
    pub(super) op: Op,
}

/// The marks of all things, one for each resource and permit slot.
#[derive(Debug, Default)]
pub(super) struct Things {
    marks: BTreeMap<(ResourceName, Option<u32>), Marks>,
}

impl Things {
    /// Lets an access through or refuses it; whether it passed everywhere.
    pub(super) fn touch(
        &mut self,
        at: Moment,
        reach: &Reach,
        bug: Option<Bug>,
        history: &mut History,
    ) -> bool {
        let slots: Vec<Option<u32>> = match reach.mode {
            Mode::Permits { .. } => reach.slots.as_slice().iter().copied().map(Some).collect(),
            Mode::Exclusive | Mode::Shared => vec![None],
        };
        let access = if reach.mode == Mode::Shared { Access::Shared } else { Access::Exclusive };
        let mut passed = true;
        for slot in slots {
            let marks = self.marks.entry((reach.resource.clone(), slot)).or_default();
            let accepted = admit(marks, access, reach, bug);
            passed &= accepted;
            let (token, op) = (reach.token, reach.op);
            let what = What::Touched { access, token, slot, op, accepted };
            history.push(at, Who::Thing, Some((&reach.resource, reach.claim)), what);
        }
        passed
    }
}

fn admit(marks: &mut Marks, access: Access, reach: &Reach, bug: Option<Bug>) -> bool {
    if bug == Some(Bug::MarkAtFirstWrite) && reach.op != Op::Write {
        return true;
    }
    // With one mark every access is compared with every other.
    let as_one = bug == Some(Bug::SingleMark);
    let access = if as_one { Access::Exclusive } else { access };
    match marks.admit(access, Mark::from(reach.token)) {
        Ok(raised) => {
            *marks = raised;
            true
        }
        Err(_) => false,
    }
}
