//! The contract between leasehold and a store.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use async_trait::async_trait;

use crate::answer::{
    Admission, Broken, Cleaned, Cursor, Hint, Left, Page, Queue, Record, Renewed, Written,
};
use crate::claim::{Claim, ClaimId, ClaimRef};
use crate::error::Result;
use crate::name::ResourceName;
use crate::profile::Profile;
use crate::token::Token;

/// What fails together: a node, a slot's owner, a session, a connection.
///
/// Claims of one route are renewed in one call; a sick route never delays another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Route(pub u64);

/// A system that keeps claims.
///
/// For implementors: small, without defaults, called through `dyn`. Comfort lives in the
/// `leasehold` crate. Every verb is idempotent by claim id and may be sent again when its reply was
/// lost; every verb is cancel-safe, that is, a dropped call may or may not have taken effect, as
/// if its reply was lost.
///
/// Each line under "Behavior" is a case of the conformance suite in `leasehold-testkit`.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What this store promises.
    fn profile(&self) -> &Profile;

    /// What fails together with this resource.
    fn route(&self, resource: &ResourceName) -> Route;

    /// Claims a resource.
    ///
    /// # Behavior
    ///
    /// - Admits by the shared predicate ([`Admission`](crate::admission)); mints a token above
    ///   every earlier one of the resource; a re-entry keeps its outer grant's token.
    /// - With [`Place::No`](crate::Place) it never queues and leaves nothing behind.
    /// - With a place it queues behind all live claims, and from then on
    ///   [`Store::changed`] tells of it, also of what happened before the first call.
    /// - Entering the same claim again finds it where it is: granted, waiting with the same
    ///   ticket, or gone. A claim that has ended, or whose leave left a tombstone, is gone.
    /// - A claim whose holder already has a grant that covers its mode is admitted at once.
    /// - Another kind, or another limit, than that of the live claims is refused as `Usage`.
    /// - A term outside the profile's bounds is refused as `Usage`.
    async fn enter(&self, claim: &Claim) -> Result<Admission>;

    /// Renews grants and keeps places, of one route; each is answered alone, in order.
    ///
    /// # Behavior
    ///
    /// - Never creates and never revives: what has ended is gone, also when its term ran out and
    ///   nobody has claimed since.
    /// - A granted claim then lasts its (perhaps new) term from now; never less than it had.
    /// - A waiting claim keeps its place, and is told when it has been granted meanwhile.
    /// - A claim marked by [`Store::break_`] is answered gone, broken.
    /// - One sick claim does not delay the others: it is answered unknown.
    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed>;

    /// Ends a claim in whatever state it is, and hands over to those who now fit.
    ///
    /// # Behavior
    ///
    /// - Ends this claim only, never another of the same name or holder.
    /// - Sent again, it says gone, released.
    /// - With `enter_unanswered`, a claim it does not find is barred for one term.
    /// - The last claim of a re-entered grant frees it; an inner one does not.
    async fn leave(&self, claim: &ClaimRef) -> Result<Left>;

    /// Waits until something may have changed on a resource for a claim of this process.
    ///
    /// `claim` is the one on whose behalf is waited: while it waits here, a store that knows whom
    /// its word is for wakes this call for that claim alone, so that a hand-over wakes one task
    /// of a process and not all. Without one, or for a claim that does not wait here, it is told
    /// of all on the resource.
    ///
    /// # Behavior
    ///
    /// - Returns at once if something has changed since `since`, and after `at_most` in any case.
    /// - May return for nothing, and may miss a change (callers look again by themselves).
    async fn changed(
        &self,
        resource: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint>;

    /// What stands on a resource, for people and tests. Changes nothing.
    async fn inspect(&self, resource: &ResourceName) -> Result<Queue>;

    /// Names with a live claim or a memory of one, in byte order. Changes nothing.
    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>>;

    /// Keeps a small record with a resource, guarded by a grant, for `keep` after this call.
    ///
    /// # Behavior
    ///
    /// - Writes nothing if the claim is not granted now.
    /// - Replaces the record before it; it outlives the grant.
    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written>;

    /// Reads the record of a resource, unless it has run out.
    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>>;

    /// An operator's force: marks the grants of a resource as broken.
    ///
    /// # Behavior
    ///
    /// - A marked holder is told at its next renewal; the resource is free when it leaves, or when
    ///   the term it has runs out, or at once with `now`.
    /// - With `expect`, only the grant with that token.
    /// - The next token is higher.
    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken>;

    /// Forgets names without a live claim or record that were last used longer than `keep` ago.
    ///
    /// # Behavior
    ///
    /// - A token issued for such a name later is above all before it.
    /// - With `dry`, changes nothing and says what it would.
    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned>;

    /// Waits until something has happened since `since` that may have ended claims of this client,
    /// or lost words to it: a reconnect, another master, a moved slot, a new session. The caller then
    /// renews all it holds at once.
    ///
    /// # Behavior
    ///
    /// - Returns at once if something has happened since `since`.
    /// - Never returns where nothing of the kind can happen.
    async fn disturbed(&self, since: Cursor) -> Cursor;

    /// Lets go of connections and threads. Claims stay; their terms or the kernel end them.
    async fn close(&self);
}
