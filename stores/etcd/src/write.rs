//! A small record, guarded by a grant.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimRef, Ended, Error, ErrorKind, Record, Result, Written};
use serde::{Deserialize, Serialize};

use crate::desk::Known;
use crate::keys::Beside;
use crate::leases::Use;
use crate::look::{Seen, look, look_at, look_for, seconds};
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn;

/// What stands before the value, on a line of its own.
#[derive(Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) token: u64,
    pub(crate) keep_ms: u64,
}

pub(crate) async fn write(
    inner: Arc<Inner>,
    rpc: Rpc,
    claim: ClaimRef,
    value: Vec<u8>,
    keep: Duration,
) -> Result<Written> {
    if value.len() > Record::VALUE_MAX {
        let detail =
            format!("the value has {} bytes: want at most {}", value.len(), Record::VALUE_MAX);
        return Err(Error::new(ErrorKind::Usage, "write a record", detail).on(&claim.resource));
    }
    let known = matches!(inner.desk().known(claim.id), Known::Part);
    let seen = if known {
        look_at(&inner, &rpc, claim.id).await?
    } else if let Known::Ended(how) = inner.desk().known(claim.id) {
        Seen::Gone(how)
    } else {
        look_for(&inner, &rpc, &claim).await?
    };
    let grant = match seen {
        Seen::Granted(grant) => grant,
        Seen::Waiting(_) => return Ok(Written::Gone(Ended::Unknown)),
        Seen::Gone(how) => return Ok(Written::Gone(how)),
    };
    let Some(hold) = inner.desk().hold_of(claim.id).cloned() else {
        return Ok(Written::Gone(inner.grave(claim.id)));
    };
    let head = Head {
        token: grant.token.get(),
        keep_ms: u64::try_from(keep.as_millis()).unwrap_or(u64::MAX),
    };
    let mut stored = serde_json::to_vec(&head).unwrap_or_default();
    stored.push(b'\n');
    stored.extend_from_slice(&value);
    let lease = inner.leases.grant(Use::Own, seconds(keep).max(inner.ttl_min)).await?;
    inner.leases.forget(lease.id); // nobody keeps it alive
    let guard = vec![
        txn::created_at(hold.keys.claim(hold.key), hold.create),
        txn::absent(hold.keys.beside(Beside::Broken(hold.key))),
    ];
    let put = vec![txn::swap(inner.layout.record(&claim.resource), stored, lease.id)];
    let done = txn::run(&rpc, guard, put, vec![]).await;
    let mut done = done.map_err(|failure| inner.failed(failure).while_doing("write a record"))?;
    if !done.succeeded {
        inner.leases.give_back(lease.id);
        let mirror = look(&inner, &rpc, &hold.keys).await?;
        if mirror.standing(hold.key).is_some() {
            return Ok(Written::Gone(Ended::Broken));
        }
        let how = crate::look::ended(&inner, &rpc, &hold, claim.id, &mirror).await?;
        return Ok(Written::Gone(how));
    }
    if let Some(old) = done.replaced(0).filter(|old| old.lease != 0) {
        inner.leases.give_back(old.lease);
    }
    Ok(Written::Stored)
}
