//! Keys on our leases that no claim of ours owns: whatever went wrong, they must not be kept alive
//! with the others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Moment};

use crate::keys::claim_id;
use crate::proto::{RANGE, RangeRequest, RangeResponse};
use crate::store::Inner;
use crate::txn;

/// An enter may be on its way for so long; then its claim is in the books, or it has failed.
const IN_FLIGHT_MAX: Duration = Duration::from_secs(25);

/// How often it is looked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Keys that nobody owns, and since when they are known as such.
type Orphans = HashMap<Vec<u8>, Moment>;

/// Looks over our leases again and again, as long as the runtime lives.
pub(crate) async fn look_over(inner: Arc<Inner>) {
    let mut known = Orphans::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        inner.end_orphans(&mut known).await;
    }
}

impl Inner {
    /// Looks over our common leases, and deletes what nobody has owned for long.
    async fn end_orphans(&self, known: &mut Orphans) {
        let mut found = HashSet::new();
        for lease in self.leases.common_ids() {
            match self.leases.time_to_live(&self.rpc, lease, true).await {
                Ok(answer) => found.extend(answer.into_iter().flat_map(|answer| answer.keys)),
                Err(_) => return, // it is looked again
            }
        }
        let now = self.clock.now();
        let owned =
            |key: &[u8]| owner(key).is_none_or(|claim| self.desk().holds.contains_key(&claim));
        found.retain(|key| !owned(key));
        known.retain(|key, _| found.contains(key));
        for key in found {
            let since = *known.entry(key.clone()).or_insert(now);
            if now.since(since) >= IN_FLIGHT_MAX && self.end_orphan(&key).await {
                known.remove(&key);
            }
        }
    }

    async fn end_orphan(&self, key: &[u8]) -> bool {
        let question = RangeRequest { key: key.to_vec(), ..RangeRequest::default() };
        let asked: Result<RangeResponse, _> = self.rpc.call(RANGE, question).await;
        let Ok(answer) = asked else { return false };
        let Some(kv) = answer.kvs.first() else { return true };
        let guard = txn::created_at(key.to_vec(), kv.create_revision);
        tracing::warn!(key = %String::from_utf8_lossy(key), "a key of ours that no claim owns is deleted");
        txn::run(&self.rpc, vec![guard], vec![txn::delete(key.to_vec())], vec![]).await.is_ok()
    }
}

/// The claim in whose name a key stands; `None` for a key that is none of a claim.
fn owner(key: &[u8]) -> Option<ClaimId> {
    let at = key.iter().rposition(|byte| *byte == b'/')?;
    claim_id(key.get(at + 1..)?)
}
