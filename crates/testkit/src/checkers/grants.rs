//! What several checkers follow: who believes, and whom the store has admitted, event by event.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_core::{ClaimId, Ended, HolderId, Mode, Moment, Slots, Token};

use crate::history::{Event, What, Who};

/// A grant, believed or admitted.
#[derive(Clone, Debug)]
pub(super) struct Hold<'h> {
    pub(super) claim: ClaimId,
    pub(super) resource: &'h str,
    pub(super) client: Who,
    pub(super) holder: HolderId,
    pub(super) mode: Mode,
    pub(super) token: Token,
    pub(super) slots: &'h Slots,
    /// No law covers this belief any more: it was broken at once, or a clock misled it.
    pub(super) excused: bool,
}

impl Hold<'_> {
    /// One holder may hold twice under one token: it has entered again.
    pub(super) fn same_grant(&self, other: &Hold<'_>) -> bool {
        self.holder == other.holder && self.token == other.token
    }
}

/// Who holds now, as the clients believe and as the store has decided.
#[derive(Debug, Default)]
pub(super) struct Grants<'h> {
    pub(super) believed: Vec<Hold<'h>>,
    pub(super) admitted: Vec<Hold<'h>>,
    /// Claims that ended by force: their clients may believe in them until they are told.
    forced: BTreeSet<ClaimId>,
    /// Until when beliefs are excused: of one client, or of all.
    upset: BTreeMap<Who, Moment>,
}

impl<'h> Grants<'h> {
    /// Takes in an event. A hold that it begins is the last of its list afterwards.
    pub(super) fn follow(&mut self, event: &'h Event) {
        if let What::Upset { window } = event.what {
            let until = event.at + window;
            let end = self.upset.entry(event.who).or_default();
            *end = (*end).max(until);
            let whom = event.who;
            let all = whom == Who::Store;
            for hold in self.believed.iter_mut().filter(|h| all || h.client == whom) {
                hold.excused = true;
            }
            return;
        }
        let (Some(claim), Some(resource)) = (event.claim, &event.resource) else { return };
        match &event.what {
            What::Believes { holder, mode, token, slots } => self.believed.push(Hold {
                claim,
                resource: resource.as_str(),
                client: event.who,
                holder: *holder,
                mode: *mode,
                token: *token,
                slots,
                excused: self.is_upset(event) || self.forced.contains(&claim),
            }),
            What::Ceases { .. } => self.believed.retain(|h| h.claim != claim),
            What::Admitted { holder, mode, token, slots, .. } => self.admitted.push(Hold {
                claim,
                resource: resource.as_str(),
                client: event.who,
                holder: *holder,
                mode: *mode,
                token: *token,
                slots,
                excused: false,
            }),
            What::Ended { how, .. } => {
                self.admitted.retain(|h| h.claim != claim);
                if is_force(*how) {
                    self.forced.insert(claim);
                    self.believed
                        .iter_mut()
                        .filter(|h| h.claim == claim)
                        .for_each(|h| h.excused = true);
                }
            }
            _ => {}
        }
    }

    fn is_upset(&self, event: &Event) -> bool {
        let of = |who| self.upset.get(&who).is_some_and(|until| *until > event.at);
        of(event.who) || of(Who::Store)
    }
}

/// Ends that no belief can foresee, and that law 2 excludes. A death is none: the dead believe
/// nothing, so whoever was taken for dead and believes was robbed.
pub(super) fn is_force(how: Ended) -> bool {
    matches!(how, Ended::Broken | Ended::Evicted | Ended::Failover)
}
