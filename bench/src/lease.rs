//! What every part does with a lease.

use leasehold::{Lease, Release};

use crate::Result;

/// Releases a lease, which must still be held.
pub(crate) async fn released(lease: Lease) -> Result<()> {
    match lease.release().await {
        Release::Released => Ok(()),
        other => Err(format!("not released: {other:?}").into()),
    }
}
