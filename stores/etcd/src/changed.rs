//! Waiting for word of a resource.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, Cursor, Hint, ResourceName};
use tokio::time::{Instant, timeout_at};

use crate::store::Inner;

/// Counted as long as it listens.
struct Listener<'i> {
    inner: &'i Inner,
    resource: &'i ResourceName,
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.inner.desk().slots.get_mut(self.resource) {
            slot.listeners = slot.listeners.saturating_sub(1);
        }
    }
}

pub(crate) async fn changed(
    inner: Arc<Inner>,
    resource: ResourceName,
    claim: Option<ClaimId>,
    since: Cursor,
    at_most: Duration,
) -> Hint {
    let deadline = Instant::now() + at_most.min(Duration::from_secs(24 * 3600));
    let notify = {
        let mut desk = inner.desk();
        let slot = desk.slots.entry(resource.clone()).or_default();
        slot.listeners += 1;
        Arc::clone(&slot.notify)
    };
    let _listener = Listener { inner: &inner, resource: &resource };
    loop {
        let mut notified = std::pin::pin!(notify.notified());
        // Before the look, so that what happens after it is heard.
        notified.as_mut().enable();
        let cursor = match inner.desk().word(&resource, claim, since) {
            Ok(hint) => return hint,
            Err(cursor) => cursor,
        };
        if timeout_at(deadline, notified).await.is_err() {
            return Hint::Moved(cursor);
        }
    }
}
