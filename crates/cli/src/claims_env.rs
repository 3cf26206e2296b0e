//! What a command under a lock finds in its environment, and what a nested leasehold reads there.

use std::ffi::OsString;

use leasehold::Lease;
use leasehold_core::{ClaimId, Holder, HolderId, Mode, Queue, QueueEntry, QueueState};

use crate::context::{Context, variable};
use crate::exit::{End, usage};
use crate::names::Named;

/// The claims of the runs around this one, outermost first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ancestors(Vec<ClaimId>);

impl Ancestors {
    /// Reads `LEASEHOLD_CLAIMS`.
    pub(crate) fn from_env() -> Result<Ancestors, End> {
        let Some(text) = variable("LEASEHOLD_CLAIMS") else { return Ok(Ancestors::default()) };
        Ancestors::parse(&text.to_string_lossy()).ok_or_else(|| {
            usage(
                "LEASEHOLD_CLAIMS is not what leasehold sets it to: unset it, or pass it on whole",
            )
        })
    }

    fn parse(text: &str) -> Option<Ancestors> {
        text.split(',').map(|id| id.parse().ok()).collect::<Option<Vec<_>>>().map(Ancestors)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The grant in this queue that an ancestor holds. Ids are never reused, so that the store and
    /// the name need no comparing: what has ended, or stands elsewhere, is not in the queue.
    pub(crate) fn holds<'q>(&self, queue: &'q Queue) -> Option<&'q QueueEntry> {
        queue.entries.iter().rev().find(|entry| {
            let live = matches!(entry.state, QueueState::Granted { broken: false, .. });
            live && self.0.contains(&entry.claim)
        })
    }

    fn with(&self, claim: ClaimId) -> String {
        let ids = self.0.iter().chain([&claim]);
        ids.map(ClaimId::to_string).collect::<Vec<_>>().join(",")
    }
}

/// How a holder is passed on: its id, a colon, its label.
pub(crate) fn holder_text(holder: &Holder) -> String {
    format!("{}:{}", holder.id, holder.label())
}

/// The holder that `LEASEHOLD_HOLDER` passes on.
pub(crate) fn holder_from_env() -> Result<Option<Holder>, End> {
    let Some(text) = variable("LEASEHOLD_HOLDER") else { return Ok(None) };
    let text = text.to_string_lossy();
    let (id, label) = text.split_once(':').unwrap_or((&text, ""));
    let id: HolderId = id.parse().map_err(|_| {
        usage("LEASEHOLD_HOLDER is not what leasehold sets it to: unset it, or pass it on whole")
    })?;
    Ok(Some(Holder::new(id, label)))
}

/// Refuses, before anything waits, what would wait for itself; the holder to enter as.
pub(crate) fn reentry(
    ancestors: &Ancestors,
    queue: &Queue,
    named: &Named,
    mode: Mode,
    reenter: bool,
) -> Result<Option<Holder>, End> {
    let Some(outer) = ancestors.holds(queue) else { return Ok(None) };
    if !reenter {
        return Err(usage(format!(
            "{} is held by a run around this one and would wait for itself: want --reenter to \
             enter it again, or another name",
            named.shown()
        )));
    }
    if !outer.mode.covers(mode) {
        return Err(usage(format!(
            "the run around this one holds {} in a mode that does not cover this one, and there \
             is no upgrade: want the outer one exclusive, or as many permits",
            named.shown()
        )));
    }
    Ok(Some(outer.holder.clone()))
}

/// The variables of a lease, in the order in which they are documented.
pub(crate) fn variables(
    context: &Context,
    named: &Named,
    lease: &Lease,
    url: &str,
    ancestors: &Ancestors,
) -> Vec<(&'static str, OsString)> {
    let mut set = vec![
        ("LEASEHOLD_NAME", named.given.clone()),
        ("LEASEHOLD_TOKEN", lease.token().to_string()),
        ("LEASEHOLD_CLAIM", lease.claim_id().to_string()),
        ("LEASEHOLD_HOLDER", holder_text(lease.holder())),
        ("LEASEHOLD_STORE", url.to_string()),
        ("LEASEHOLD_NAMESPACE", context.names.namespace().to_string()),
        ("LEASEHOLD_EPOCH", lease.epoch().to_string()),
        ("LEASEHOLD_CLAIMS", ancestors.with(lease.claim_id())),
    ];
    if !lease.slots().is_empty() {
        set.push(("LEASEHOLD_SLOTS", lease.slots().to_string()));
    }
    set.into_iter().map(|(name, value)| (name, value.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use leasehold_core::{Life, Slots, Token};

    fn entry(claim: u128, mode: Mode, broken: bool) -> QueueEntry {
        QueueEntry {
            claim: ClaimId::from_bits(claim),
            holder: Holder::new(HolderId::from_bits(9), "h"),
            mode,
            life: Life::Process,
            entered_ago: Duration::ZERO,
            state: QueueState::Granted {
                token: Token::new(1).unwrap(),
                slots: Slots::default(),
                held_for: Duration::ZERO,
                left: Duration::from_secs(1),
                broken,
            },
        }
    }

    fn named() -> Named {
        crate::names::Names::default().full("n".as_ref()).unwrap()
    }

    #[test]
    fn claims_survive_their_text() {
        let one = Ancestors::default().with(ClaimId::from_bits(1));
        let two = Ancestors::parse(&one).unwrap().with(ClaimId::from_bits(2));
        let ids = [1, 2].map(ClaimId::from_bits).to_vec();
        assert_eq!(Ancestors::parse(&two), Some(Ancestors(ids)));
        assert_eq!(Ancestors::parse("x"), None);
        assert_eq!(Ancestors::parse(&format!("{one},")), None);
    }

    #[test]
    fn only_a_live_grant_of_an_ancestor_counts() {
        let ancestors = Ancestors(vec![ClaimId::from_bits(1)]);
        let queue = |entry| Queue { entries: vec![entry], ..Queue::default() };
        assert!(ancestors.holds(&queue(entry(1, Mode::Exclusive, false))).is_some());
        assert!(ancestors.holds(&queue(entry(2, Mode::Exclusive, false))).is_none());
        assert!(ancestors.holds(&queue(entry(1, Mode::Exclusive, true))).is_none());
    }

    #[test]
    fn reentry_takes_the_outer_holder_and_never_upgrades() {
        let ancestors = Ancestors(vec![ClaimId::from_bits(1)]);
        let shared = Queue { entries: vec![entry(1, Mode::Shared, false)], ..Queue::default() };
        let enter = |mode, again| reentry(&ancestors, &shared, &named(), mode, again);
        assert!(enter(Mode::Shared, false).is_err());
        assert_eq!(enter(Mode::Shared, true).unwrap().unwrap().id, HolderId::from_bits(9));
        assert!(enter(Mode::Exclusive, true).is_err());
        assert_eq!(reentry(&ancestors, &Queue::default(), &named(), Mode::Shared, false), Ok(None));
    }
}
