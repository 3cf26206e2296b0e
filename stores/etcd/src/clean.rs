//! Forgetting names that nobody has used for long. Tokens are revisions: they rise over it.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Cleaned, Page, ResourceName, Result};

use crate::keys::Beside;
use crate::look::look;
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn;
use crate::value::ago;

pub(crate) async fn clean(
    inner: Arc<Inner>,
    rpc: Rpc,
    keep: Duration,
    page: Page,
    dry: bool,
) -> Result<Cleaned> {
    let names = crate::list::list(Arc::clone(&inner), rpc.clone(), page.clone()).await?;
    let full = names.len() == page.limit as usize;
    let next = if full { names.last().cloned() } else { None };
    let mut cleaned = Vec::new();
    for name in names {
        if clean_one(&inner, &rpc, &name, keep, dry).await? {
            cleaned.push(name);
        }
    }
    Ok(Cleaned { names: cleaned, next })
}

async fn clean_one(
    inner: &Inner,
    rpc: &Rpc,
    name: &ResourceName,
    keep: Duration,
    dry: bool,
) -> Result<bool> {
    let keys = inner.layout.keys(name)?;
    let mirror = look(inner, rpc, &keys).await?;
    let (used_us, written) = mirror.used();
    if mirror.len() > 0 || ago(used_us) < keep {
        return Ok(false);
    }
    // Unused, and still so when it is forgotten.
    let mut guard = vec![txn::empty(keys.claims()), txn::absent(inner.layout.record(name))];
    let counters = [Beside::In, Beside::Out, Beside::Gone];
    for (what, revision) in counters.into_iter().zip(written) {
        guard.push(txn::modified_at(keys.beside(what), revision));
    }
    let forget = if dry {
        vec![]
    } else {
        vec![txn::delete_all(keys.beside_all()), txn::delete(inner.layout.used(name))]
    };
    let done = txn::run(rpc, guard, forget, vec![]).await;
    Ok(done.map_err(|failure| inner.failed(failure).while_doing("clean names"))?.succeeded)
}
