//! Forgets, at each member, names that nobody has used for long there.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Cleaned, Error, Page, ResourceName, Result, Store};

use crate::core::Core;

pub(crate) async fn clean(
    core: Arc<Core>,
    keep: Duration,
    page: Page,
    dry: bool,
) -> Result<Cleaned> {
    let mut asked = core.ask(core.all(), core.patient(), |_, store| {
        let page = page.clone();
        async move { store.clean(keep, &page, dry).await }
    });
    let mut names: BTreeSet<ResourceName> = BTreeSet::new();
    let mut next: Option<ResourceName> = None;
    let mut failed: Vec<(usize, Error)> = Vec::new();
    let mut cleaned = 0;
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(one) => {
                cleaned += 1;
                names.extend(one.names);
                // Who has got less far goes on from there; the others have nothing to do twice.
                next = match (next, one.next) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            Err(error) => failed.push((said.at, error)),
        }
    }
    if cleaned < core.majority() {
        return Err(core.too_few(&failed, cleaned).maybe_applied());
    }
    Ok(Cleaned { names: names.into_iter().collect(), next })
}
