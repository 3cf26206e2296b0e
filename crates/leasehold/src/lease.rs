//! The user's guard over a grant.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use leasehold_core::acquire::Granted;
use leasehold_core::{
    ClaimId, ClaimRef, Epoch, Error, ErrorKind, Holder, Left, Life, Loss, Mark, Moment, Previous,
    Renewed, ResourceName, Result, Slots, Token,
};
use tracing::Instrument;

use crate::cell::{LeaseCell, State};
use crate::client::Client;
use crate::driver::{Kept, Known, granted_ref};
use crate::lost::Lost;

/// The right to do something alone (or with other readers, or as one of a few), for a while.
///
/// Renewed in the background until it is released, dropped or lost. Owned, `Send + Sync +
/// 'static`: it may move to another task or thread.
///
/// A lease is a promise about time, and a process may be late without noticing. So it says when it
/// has ended ([`Lease::lost`], [`Lease::run`]), and it carries a [`Lease::token`] that the protected
/// thing should check.
///
/// # Cancel safety
///
/// Dropping a lease releases it in the background. [`Lease::release`] does it now and says how it
/// went; dropped half-way, it goes on in the background.
#[must_use = "a lease is released when it is dropped"]
pub struct Lease {
    client: Client,
    grant: Granted,
    cell: Arc<LeaseCell>,
    /// Whether the claim is still this guard's to leave.
    is_armed: bool,
}

/// How a release went.
#[derive(Debug)]
#[must_use]
pub enum Release {
    /// It was held to the end, and is free now.
    Released,
    /// It had been lost before.
    AlreadyLost(Loss),
    /// The store did not say; it is tried again in the background, and the term ends it anyway.
    Unknown(Error),
}

/// What [`Lease::check`] may find.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CheckError {
    /// The store says that it is not held any more.
    #[error(transparent)]
    Lost(#[from] Loss),
    /// The store did not say.
    #[error(transparent)]
    Unknown(Error),
}

impl Lease {
    pub(crate) fn new(client: Client, kept: Kept) -> Lease {
        let Kept { granted: grant, cell } = kept;
        Lease { client, grant, cell, is_armed: true }
    }

    /// What is held.
    pub fn name(&self) -> &ResourceName {
        &self.grant.claim.resource
    }

    /// The fencing token: give it to the protected thing with every access.
    pub fn token(&self) -> Token {
        self.grant.grant.token
    }

    /// The token with the store's epoch, as fences compare it.
    pub fn mark(&self) -> Mark {
        Mark { epoch: self.epoch(), token: self.token() }
    }

    /// The epoch that the store's URL names; 0 unless it does.
    pub fn epoch(&self) -> Epoch {
        self.client.epoch()
    }

    /// The id of the claim, by which another process may renew or release it.
    pub fn claim_id(&self) -> ClaimId {
        self.grant.claim.id
    }

    /// Who holds it.
    pub fn holder(&self) -> &Holder {
        &self.grant.claim.holder
    }

    /// The permit slots; empty for locks.
    pub fn slots(&self) -> &Slots {
        &self.grant.grant.slots
    }

    /// How the grant before this one ended. After anything but a release, check the state that
    /// you inherit.
    pub fn previous(&self) -> Previous {
        self.grant.grant.previous
    }

    /// How it stands now, by the clock.
    pub fn state(&self) -> State {
        self.cell.state()
    }

    /// How long it may still be believed if nothing is heard any more; zero once it has ended.
    pub fn valid_for(&self) -> Duration {
        match self.state() {
            State::Held | State::AtRisk => self.cell.until().since(self.cell.clock().now()),
            State::Lost(_) | State::Released => Duration::ZERO,
        }
    }

    /// Until when it is believed, on the clock that the store's profile names.
    pub fn until(&self) -> Moment {
        self.cell.until()
    }

    /// Done when the lease is lost, before it can be another's. Cloneable.
    pub fn lost(&self) -> Lost {
        Lost::new(Arc::clone(&self.cell))
    }

    /// Runs `work` while the lease is held, and drops it when the lease is lost.
    ///
    /// Work that blocks its thread cannot be dropped meanwhile; let it look at [`Lease::state`],
    /// and let the protected thing check the token.
    ///
    /// # Errors
    ///
    /// The reason, if the lease was lost before the work was done.
    ///
    /// # Cancel safety
    ///
    /// Dropping this drops the work; the lease stays.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Loss> {
        let lost = async { Err(self.lost().await) };
        let done = async { Ok(work.await) };
        let result = future::or(lost, done).await;
        match (result, self.state()) {
            // The work was done, but not in time.
            (Ok(_), State::Lost(loss)) => Err(loss),
            (result, _) => result,
        }
    }

    /// Asks the store now whether it is still held, and renews it if so.
    ///
    /// A check is a race by nature: the answer is old when it arrives. Where the protected thing
    /// can compare tokens, let it.
    ///
    /// # Errors
    ///
    /// [`CheckError::Lost`] (the lease is then lost for good), or [`CheckError::Unknown`].
    pub async fn check(&self) -> Result<(), CheckError> {
        if let State::Lost(loss) = self.state() {
            return Err(CheckError::Lost(loss));
        }
        let claim = self.claim_ref();
        let store = Arc::clone(self.client.store());
        let call = Box::pin(async move { Ok(store.renew(&[claim]).await) });
        let answers = self.client.shared().call("check a lease", call).await;
        let answer = answers.map_err(CheckError::Unknown)?.into_iter().next();
        // What was lost while the store was asked stays lost, whatever it says.
        if let State::Lost(loss) = self.state() {
            return Err(CheckError::Lost(loss));
        }
        let lost = |loss| {
            self.client.shared().lose(self.claim_id(), loss);
            self.cell.on_lost(loss);
            Err(CheckError::Lost(loss))
        };
        match answer {
            Some(Renewed::Alive { .. }) => Ok(()),
            Some(Renewed::Granted(grant)) if grant.token == self.token() => Ok(()),
            Some(Renewed::Granted(_) | Renewed::Waiting(_)) => lost(Loss::Stolen),
            Some(Renewed::Gone(how)) => lost(Loss::from(how)),
            Some(Renewed::Unknown(error)) if error.kind() == ErrorKind::Replaced => {
                lost(Loss::StoreReplaced)
            }
            Some(Renewed::Unknown(error)) => Err(CheckError::Unknown(error)),
            None => Err(CheckError::Unknown(no_answer())),
        }
    }

    /// Releases it, and says how that went.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the release goes on in the background.
    pub async fn release(self) -> Release {
        let span = tracing::debug_span!(target: "leasehold", "release", name = ?self.name());
        self.release_now().instrument(span).await
    }

    async fn release_now(mut self) -> Release {
        let claim = match self.let_go() {
            Ok(claim) => claim,
            Err(loss) => {
                self.done();
                return Release::AlreadyLost(loss);
            }
        };
        // From here the claim is the background's to leave if this future is dropped.
        let seen_out = SeenOut { client: &self.client, claim: Some(claim.clone()) };
        let store = Arc::clone(self.client.store());
        let call = Box::pin(async move { store.leave(&claim).await });
        let left = self.client.shared().call("leave", call).await;
        match left {
            Ok(left) => {
                seen_out.done();
                tracing::debug!(target: "leasehold", name = %self.name(), ?left, "released");
                match left {
                    Left::Released => Release::Released,
                    Left::Gone(how) => Release::AlreadyLost(Loss::from(how)),
                }
            }
            Err(error) => Release::Unknown(error),
        }
    }

    /// Lets the claim live on by its term alone, for at least this long, and stops caring for it.
    ///
    /// For work whose effect must be left alone for a while after it is done. It stays for
    /// `at_least` or for what the last renewal left of its term, whichever is longer. One that was
    /// lost is not freed early either.
    ///
    /// # Errors
    ///
    /// The store's, in which case the lease is released as if it was dropped.
    pub async fn leave_by_term(mut self, at_least: Duration) -> Result<Release> {
        let claim = match self.let_go() {
            Ok(claim) => claim,
            Err(loss) => return Ok(Release::AlreadyLost(loss)),
        };
        let (shortest, longest) = self.client.profile().term_bounds;
        let term = at_least.clamp(shortest, longest);
        let claim = ClaimRef { term, life: Life::Term, ..claim };
        let seen_out = SeenOut { client: &self.client, claim: Some(claim.clone()) };
        // A renewal that is on its way would give it its old life back.
        self.client.shared().until_unasked(claim.id).await;
        let store = Arc::clone(self.client.store());
        let call = Box::pin(async move { Ok(store.renew(&[claim]).await) });
        let answers = self.client.shared().call("leave by its term", call).await?;
        match answers.into_iter().next() {
            Some(Renewed::Alive { .. } | Renewed::Granted(_)) => {
                seen_out.done();
                Ok(Release::Released)
            }
            Some(Renewed::Gone(how)) => Ok(Release::AlreadyLost(Loss::from(how))),
            Some(Renewed::Waiting(_)) => Ok(Release::AlreadyLost(Loss::Stolen)),
            Some(Renewed::Unknown(error)) => Err(error),
            None => Err(no_answer()),
        }
    }

    fn claim_ref(&self) -> ClaimRef {
        granted_ref(&self.grant)
    }

    /// Ends belief: the claim is no longer this guard's. What is left to do is to leave.
    fn let_go(&mut self) -> Result<ClaimRef, Loss> {
        self.is_armed = false;
        let _ = self.cell.state(); // final, if the time is up
        let known = self.client.shared().forget(self.claim_id());
        if let Known::Lost(loss) = known {
            self.cell.on_lost(loss);
        }
        let was_believed = self.cell.on_released();
        if known == Known::Held {
            if was_believed {
                return Ok(self.claim_ref());
            }
            // The time was up and the driver had not got to it.
            self.client.shared().withdraw_later(self.claim_ref(), self.cell.until());
        }
        match self.cell.state() {
            State::Lost(loss) => Err(loss),
            _ => Err(Loss::Expired),
        }
    }

    /// The owner of a lost lease is done with it: nothing is in the way of the next any more.
    fn done(&self) {
        self.client.shared().hasten(self.claim_id());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_armed {
            return;
        }
        match self.let_go() {
            Ok(claim) => self.client.shared().withdraw(claim),
            Err(_) => self.done(),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("claim", &self.claim_id())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// A claim that leaves in the background unless it is known to have left.
struct SeenOut<'a> {
    client: &'a Client,
    claim: Option<ClaimRef>,
}

impl SeenOut<'_> {
    fn done(mut self) {
        self.claim = None;
    }
}

impl Drop for SeenOut<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.client.shared().withdraw(claim);
        }
    }
}

fn no_answer() -> Error {
    let detail = "the store answered for fewer claims than were asked";
    Error::new(ErrorKind::Bug, "renew the lease", detail)
}
