//! What the renewal machine is told, and what it asks for.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::acquire::CallId;
use crate::answer::{Ended, Left, Renewed};
use crate::claim::{ClaimId, ClaimRef};
use crate::error::{Error, Result};
use crate::store::Route;
use crate::time::Moment;

/// A lease to be taken into care.
#[derive(Debug, Clone)]
pub struct Keep {
    /// The claim, with its token.
    pub claim: ClaimRef,
    /// What it fails with.
    pub route: Route,
    /// When the call was sent that `until` is counted from.
    pub asked_at: Moment,
    /// The end of belief.
    pub until: Moment,
    /// Whether to renew it, or let its one term run out.
    pub renewed: bool,
}

/// Why a lease was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Loss {
    /// Its term ran out: it was fixed, or this process did not run in time to renew it.
    Expired,
    /// The store does not know the grant, or another has it.
    Stolen,
    /// An operator broke it.
    Broken,
    /// The store dropped it to make room.
    Evicted,
    /// The store lost it when another member took over.
    Failover,
    /// The clock that judges it moved against ours.
    Clock,
    /// No clear answer to any renewal in time.
    Unreachable,
    /// The store that granted it is gone, or another stands in its place.
    StoreReplaced,
    /// Its client was closed, and released it.
    Closed,
}

impl Loss {
    /// One word for people and programs.
    pub const fn word(self) -> &'static str {
        match self {
            Loss::Expired => "expired",
            Loss::Stolen => "stolen",
            Loss::Broken => "broken",
            Loss::Evicted => "evicted",
            Loss::Failover => "failover",
            Loss::Clock => "clock",
            Loss::Unreachable => "unreachable",
            Loss::StoreReplaced => "store-replaced",
            Loss::Closed => "closed",
        }
    }
}

impl fmt::Display for Loss {
    /// A sentence; [`Loss::word`] is for programs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Expired => "the lease was lost: its term ran out",
            Loss::Stolen => "the lease was lost: the store does not know the grant any more",
            Loss::Broken => "the lease was lost: an operator broke it",
            Loss::Evicted => "the lease was lost: the store dropped it to make room",
            Loss::Failover => "the lease was lost: the store lost it when another member took over",
            Loss::Clock => "the lease was lost: the clock that judges it moved against ours",
            Loss::Unreachable => "the lease was lost: the store did not answer in time",
            Loss::StoreReplaced => "the lease was lost: the store that granted it is gone",
            Loss::Closed => "the lease was released: its client was closed",
        })
    }
}

impl core::error::Error for Loss {}

impl From<Ended> for Loss {
    fn from(how: Ended) -> Loss {
        match how {
            Ended::Expired => Loss::Expired,
            Ended::Broken => Loss::Broken,
            Ended::Evicted => Loss::Evicted,
            Ended::Failover => Loss::Failover,
            Ended::Clock => Loss::Clock,
            Ended::Released | Ended::Died | Ended::Unknown => Loss::Stolen,
        }
    }
}

/// What the machine is told.
#[derive(Debug)]
pub enum Input {
    /// The answer to [`Effect::Renew`], in the order of its claims.
    Renewed {
        /// Which call.
        call: CallId,
        /// The answers.
        renewed: Vec<Renewed>,
    },
    /// The answer to [`Effect::Leave`].
    Left {
        /// Which call.
        call: CallId,
        /// Its answer, or why there is none.
        result: Result<Left>,
    },
    /// A lease is known to be lost by other means.
    Lost {
        /// Which.
        claim: ClaimId,
        /// Why.
        loss: Loss,
    },
    /// The store may have forgotten (a reconnect, another master): renew everything now.
    Reverify,
}

/// What the machine asks for.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Tell the holder that it has lost the lease.
    Lost {
        /// Which.
        claim: ClaimId,
        /// Why.
        loss: Loss,
    },
    /// Tell the holder that a renewal is overdue.
    AtRisk {
        /// Which.
        claim: ClaimId,
    },
    /// The lease is held, and believed until then.
    Kept {
        /// Which.
        claim: ClaimId,
        /// The end of belief.
        until: Moment,
    },
    /// A renewal had no clear answer; it is tried again.
    Overdue {
        /// Which.
        claim: ClaimId,
        /// Why.
        error: Error,
    },
    /// Call [`Store::renew`](crate::Store::renew); without an answer within `within`, answer
    /// unknown.
    Renew {
        /// To be named with the answer.
        call: CallId,
        /// The route of all the claims.
        route: Route,
        /// The claims.
        claims: Vec<ClaimRef>,
        /// How long to wait for the answer.
        within: Duration,
    },
    /// Call [`Store::leave`](crate::Store::leave).
    Leave {
        /// To be named with the answer.
        call: CallId,
        /// The claim.
        claim: ClaimRef,
    },
}
