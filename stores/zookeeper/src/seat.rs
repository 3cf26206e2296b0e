//! One contender of this client: what is known of it, and which claims it carries.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Ended, Mode, Moment, Previous, Slots, Token, Waiting};
use tokio::sync::Notify;

use crate::names::Paths;

/// A contender and the claims that stand by it: the one it was made for, and those of the same
/// holder that re-entered.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The claim it was made for.
    pub(crate) claim: Claim,
    pub(crate) paths: Paths,
    /// Whoever talks to the server about it.
    pub(crate) turn: tokio::sync::Mutex<()>,
    pub(crate) moved: Notify,
    /// The number of the last thing that happened to it.
    latest: AtomicU64,
    facts: Mutex<Facts>,
}

#[derive(Debug)]
pub(crate) struct Facts {
    /// The session it was made in; 0 until it was asked for.
    pub(crate) generation: u64,
    /// Its name, once known.
    pub(crate) node: Option<String>,
    pub(crate) stage: Stage,
    pub(crate) holds: Vec<Hold>,
    /// Its last claim has gone; nobody re-enters any more.
    pub(crate) leaving: bool,
    /// A removal of the node was sent.
    pub(crate) removal_sent: bool,
    /// Something watches its place in the queue.
    pub(crate) is_watched: bool,
    /// Its own node is watched.
    pub(crate) own_watched: bool,
    /// The grant was told to who waited for it.
    pub(crate) is_told: bool,
    /// The version of the memory that tells of an unclean end, and when it was first seen.
    pub(crate) unclean: Option<(i32, Moment)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Stage {
    /// It may stand at the server or not.
    Asked,
    Waiting(Waiting),
    Granted(Held),
    Over(Ended),
}

#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) slots: Slots,
    pub(crate) previous: Previous,
    /// How often its node's data was set: more than we know of means that it was broken.
    pub(crate) version: i32,
    pub(crate) broken: bool,
    pub(crate) since: Moment,
}

/// One claim of a seat.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub(crate) id: ClaimId,
    pub(crate) mode: Mode,
    pub(crate) term: Duration,
    /// Before the request was sent that the present term stands on.
    pub(crate) sent: Moment,
    /// When this client ends it, unless it is renewed.
    pub(crate) ends: Moment,
}

impl Seat {
    pub(crate) fn new(claim: Claim, paths: Paths) -> Seat {
        let hold = Hold {
            id: claim.id,
            mode: claim.mode,
            term: claim.term,
            sent: Moment::START,
            ends: Moment::NEVER,
        };
        Seat {
            claim,
            paths,
            turn: tokio::sync::Mutex::default(),
            moved: Notify::new(),
            latest: AtomicU64::new(0),
            facts: Mutex::new(Facts {
                generation: 0,
                node: None,
                stage: Stage::Asked,
                holds: vec![hold],
                leaving: false,
                removal_sent: false,
                is_watched: false,
                own_watched: false,
                is_told: false,
                unclean: None,
            }),
        }
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn latest(&self) -> u64 {
        self.latest.load(Ordering::Acquire)
    }

    /// Something happened to it.
    pub(crate) fn stir(&self, number: u64) {
        self.latest.fetch_max(number, Ordering::AcqRel);
        self.moved.notify_waiters();
    }

    /// The path of its node, once known.
    pub(crate) fn path(&self) -> Option<String> {
        let facts = self.facts();
        facts.node.as_ref().map(|name| format!("{}/{name}", self.paths.queue))
    }
}

impl Facts {
    pub(crate) fn held(&self) -> Option<&Held> {
        match &self.stage {
            Stage::Granted(held) => Some(held),
            _ => None,
        }
    }

    pub(crate) fn held_mut(&mut self) -> Option<&mut Held> {
        match &mut self.stage {
            Stage::Granted(held) => Some(held),
            _ => None,
        }
    }

    pub(crate) fn hold(&self, id: ClaimId) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.id == id)
    }

    /// A wait is over: the terms begin, from before the request that showed it.
    pub(crate) fn begin(&mut self, sent: Moment) {
        for hold in &mut self.holds {
            hold.sent = sent;
            hold.ends = sent + hold.term;
        }
    }

    /// The slots of a claim that re-enters.
    pub(crate) fn slots_for(&self, mode: Mode) -> Slots {
        let Some(held) = self.held() else { return Slots::default() };
        match mode {
            Mode::Permits { count, .. } => {
                let slots = held.slots.as_slice().iter().copied();
                Slots::new(slots.take(count as usize).collect())
            }
            Mode::Exclusive | Mode::Shared => Slots::default(),
        }
    }
}
