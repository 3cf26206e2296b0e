//! What the acquire machine is told, and what it asks for.

use crate::answer::{Admission, Busy, Cursor, Grant, Hint, Left, Renewed, Waiting};
use crate::claim::{Claim, ClaimId, ClaimRef};
use crate::error::{Error, Result};
use crate::time::Moment;

/// Which of a machine's calls an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// For how long an acquisition waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Not at all, and it does not queue.
    Try,
    /// Until granted.
    Forever,
    /// Until this moment.
    Until(Moment),
}

/// What the machine is told.
#[derive(Debug)]
pub enum Input {
    /// The answer to [`Effect::Enter`].
    Entered {
        /// Which call.
        call: CallId,
        /// Its answer, or why there is none.
        result: Result<Admission>,
    },
    /// The answer to [`Effect::Check`].
    Checked {
        /// Which call.
        call: CallId,
        /// Its answer.
        renewed: Renewed,
    },
    /// The answer to [`Effect::Leave`].
    Left {
        /// Which call.
        call: CallId,
        /// Its answer, or why there is none.
        result: Result<Left>,
    },
    /// The answer to [`Effect::Watch`].
    Hint(Hint),
    /// [`Effect::Watch`] came to nothing.
    WatchFailed,
    /// The connection that carries hints was lost and is there again.
    Reconnected,
    /// Nobody wants the outcome any more.
    Cancel,
}

/// What the machine asks for.
#[derive(Debug, Clone)]
pub enum Effect {
    /// Call [`Store::enter`](crate::Store::enter).
    Enter {
        /// To be named with the answer.
        call: CallId,
        /// The claim.
        claim: Claim,
    },
    /// Call [`Store::renew`](crate::Store::renew) for this waiting claim; those of one route may
    /// go together.
    Check {
        /// To be named with the answer.
        call: CallId,
        /// The claim.
        claim: ClaimRef,
    },
    /// Call [`Store::changed`](crate::Store::changed); one at a time.
    Watch {
        /// For which claim.
        claim: ClaimId,
        /// From where.
        since: Cursor,
        /// For how long at most.
        at_most: core::time::Duration,
    },
    /// Call [`Store::leave`](crate::Store::leave).
    Leave {
        /// To be named with the answer.
        call: CallId,
        /// The claim.
        claim: ClaimRef,
    },
    /// Tell the user how it goes.
    Progress(Progress),
    /// Tell the user how it ended. The machine may still have leaves to ask for.
    Done(Outcome),
}

/// How it goes.
#[derive(Debug, Clone)]
pub enum Progress {
    /// It stands in the queue.
    Waiting(Waiting),
    /// The store did not answer; it goes on trying.
    Trying(Error),
}

/// How it ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Granted.
    Granted(Granted),
    /// Others hold it, and it was not to wait.
    Busy(Busy),
    /// Others held it until the deadline.
    TimedOut(Busy),
    /// The store refused, or was not reached.
    Failed(Error),
    /// It was cancelled.
    Cancelled,
}

/// A grant, and what is needed to keep it.
#[derive(Debug, Clone)]
pub struct Granted {
    /// The grant.
    pub grant: Grant,
    /// The claim.
    pub claim: Claim,
    /// When the call was sent that the grant's end is counted from.
    pub asked_at: Moment,
    /// Some enter of it was never answered: its leave must say so.
    pub unanswered: bool,
}
