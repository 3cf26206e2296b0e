//! Records what real clients ask and hear, so that the checkers can judge it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use leasehold_core::{
    Admission, Broken, Claim, ClaimId, ClaimRef, Cleaned, Cursor, Grant, Hint, Left, Moment, Page,
    Profile, Queue, Record, Renewed, ResourceName, Result, Route, Store, Token, Written,
};

use crate::history::{Answer, Cease, History, Verb, What, Who};

/// One history that several clients write to, by one clock.
///
/// ```
/// use leasehold_core::Moment;
/// use leasehold_testkit::{Recorder, checkers::check_all};
///
/// let recorder = Recorder::new(|| Moment::from_nanos(7)); // a real one reads the store's clock
/// // … clients run, each through `recorder.wrap(client, store)` …
/// assert_eq!(check_all(&recorder.history()), Ok(()));
/// ```
#[derive(Clone)]
pub struct Recorder {
    now: Arc<dyn Fn() -> Moment + Send + Sync>,
    written: Arc<Mutex<Pages>>,
}

#[derive(Default)]
struct Pages {
    history: History,
    calls: u64,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that reads this clock. All its clients have to read the same.
    pub fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Recorder {
        Recorder { now: Arc::new(now), written: Arc::default() }
    }

    /// What was recorded so far.
    pub fn history(&self) -> History {
        self.written.lock().unwrap_or_else(PoisonError::into_inner).history.clone()
    }

    /// The same store, with every `enter`, `renew` and `leave` recorded as this client's.
    pub fn wrap(&self, client: u32, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Recorded { recorder: self.clone(), client: Who::Client(client), store })
    }

    /// A client begins to believe in a grant.
    pub fn believes(&self, client: u32, claim: &Claim, grant: &Grant) {
        let what = What::Believes {
            holder: claim.holder.id,
            mode: claim.mode,
            token: grant.token,
            slots: grant.slots.clone(),
        };
        self.push(Who::Client(client), Some((&claim.resource, claim.id)), what);
    }

    /// A client ceases to believe in it. To be told before the release is sent.
    pub fn ceases(&self, client: u32, claim: &Claim, why: Cease) {
        self.push(Who::Client(client), Some((&claim.resource, claim.id)), What::Ceases { why });
    }

    /// Anything else: an access to the protected thing, a wish, healing, what remains.
    pub fn push(&self, who: Who, on: Option<(&ResourceName, ClaimId)>, what: What) {
        // The time is read under the lock, so that the order is that of the times.
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (self.now)();
        written.history.push(at, who, on, what);
    }

    fn call(&self) -> u64 {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.calls += 1;
        written.calls
    }
}

#[derive(Debug)]
struct Recorded {
    recorder: Recorder,
    client: Who,
    store: Arc<dyn Store>,
}

impl Recorded {
    fn sent(&self, verb: Verb, resource: &ResourceName, claim: ClaimId) -> u64 {
        let call = self.recorder.call();
        self.recorder.push(self.client, Some((resource, claim)), What::Sent { call, verb });
        call
    }

    fn returned(&self, call: u64, resource: &ResourceName, claim: ClaimId, answer: Answer) {
        let what = What::Returned { call, answer };
        self.recorder.push(self.client, Some((resource, claim)), what);
    }
}

#[async_trait]
impl Store for Recorded {
    fn profile(&self) -> &Profile {
        self.store.profile()
    }

    fn route(&self, resource: &ResourceName) -> Route {
        self.store.route(resource)
    }

    async fn enter(&self, claim: &Claim) -> Result<Admission> {
        let call = self.sent(Verb::Enter, &claim.resource, claim.id);
        let result = self.store.enter(claim).await;
        let answer = match &result {
            Ok(Admission::Granted(grant)) => Answer::Granted(grant.token),
            Ok(Admission::Waiting(waiting)) => Answer::Waiting(waiting.ticket),
            Ok(Admission::Busy(_)) => Answer::Busy,
            Ok(Admission::Gone(how)) => Answer::Gone(*how),
            Err(_) => Answer::Unknown,
        };
        self.returned(call, &claim.resource, claim.id, answer);
        result
    }

    async fn renew(&self, claims: &[ClaimRef]) -> Vec<Renewed> {
        let sent = claims.iter().map(|c| self.sent(Verb::Renew, &c.resource, c.id));
        let calls: Vec<u64> = sent.collect();
        let renewed = self.store.renew(claims).await;
        for ((call, claim), renewed) in calls.into_iter().zip(claims).zip(&renewed) {
            let answer = match renewed {
                Renewed::Alive { .. } => Answer::Alive,
                Renewed::Granted(grant) => Answer::Granted(grant.token),
                Renewed::Waiting(waiting) => Answer::Waiting(waiting.ticket),
                Renewed::Gone(how) => Answer::Gone(*how),
                Renewed::Unknown(_) => Answer::Unknown,
            };
            self.returned(call, &claim.resource, claim.id, answer);
        }
        renewed
    }

    async fn leave(&self, claim: &ClaimRef) -> Result<Left> {
        let call = self.sent(Verb::Leave, &claim.resource, claim.id);
        let result = self.store.leave(claim).await;
        let answer = match &result {
            Ok(Left::Released) => Answer::Released,
            Ok(Left::Gone(how)) => Answer::Gone(*how),
            Err(_) => Answer::Unknown,
        };
        self.returned(call, &claim.resource, claim.id, answer);
        result
    }

    async fn changed(
        &self,
        name: &ResourceName,
        claim: Option<ClaimId>,
        since: Cursor,
        at_most: Duration,
    ) -> Result<Hint> {
        self.store.changed(name, claim, since, at_most).await
    }

    async fn inspect(&self, resource: &ResourceName) -> Result<Queue> {
        self.store.inspect(resource).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<ResourceName>> {
        self.store.list(page).await
    }

    async fn write(&self, claim: &ClaimRef, value: &[u8], keep: Duration) -> Result<Written> {
        self.store.write(claim, value, keep).await
    }

    async fn read(&self, resource: &ResourceName) -> Result<Option<Record>> {
        self.store.read(resource).await
    }

    async fn break_(
        &self,
        resource: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        self.store.break_(resource, expect, now).await
    }

    async fn clean(&self, keep: Duration, page: &Page, dry: bool) -> Result<Cleaned> {
        self.store.clean(keep, page, dry).await
    }

    async fn disturbed(&self, since: Cursor) -> Cursor {
        self.store.disturbed(since).await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::check_all;
    use crate::harness::Harness;
    use crate::{MemoryHarness, block_on};
    use leasehold_core::{Holder, HolderId, Life, Mode, Place};

    fn claim(n: u128) -> Claim {
        Claim {
            id: ClaimId::from_bits(n),
            resource: ResourceName::new("r").unwrap(),
            holder: Holder::new(HolderId::from_bits(n), "test"),
            mode: Mode::Exclusive,
            term: Duration::from_secs(10),
            life: Life::Term,
            place: Place::No,
            after_loss: Duration::ZERO,
        }
    }

    /// Two clients, one after the other; the first may go on believing.
    fn record(overstay: bool) -> History {
        let harness = Arc::new(MemoryHarness::new());
        let clock = Arc::clone(&harness);
        let recorder = Recorder::new(move || clock.now());
        for n in [1, 2] {
            let claim = claim(u128::from(n));
            let store = recorder.wrap(n, harness.open());
            let Ok(Admission::Granted(grant)) = block_on(store.enter(&claim)) else {
                panic!("not granted");
            };
            recorder.believes(n, &claim, &grant);
            if n == 2 || !overstay {
                recorder.ceases(n, &claim, Cease::Release);
            }
            block_on(store.leave(&claim.to_ref())).unwrap();
        }
        recorder.history()
    }

    #[test]
    fn what_clients_ask_and_hear_is_judged() {
        let good = record(false);
        assert_eq!(check_all(&good), Ok(()));
        let calls = good.events.iter().filter(|e| matches!(e.what, What::Returned { .. })).count();
        assert_eq!(calls, 4);
        assert_eq!(check_all(&record(true)).unwrap_err().promise, "exclusion");
    }
}
