//! The names that any member knows.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_core::{Error, Page, ResourceName, Result, Store};

use crate::core::Core;

pub(crate) async fn list(core: Arc<Core>, page: Page) -> Result<Vec<ResourceName>> {
    let mut asked = core.ask(core.all(), core.patient(), |_, store| {
        let page = page.clone();
        async move { store.list(&page).await }
    });
    let mut names: BTreeSet<ResourceName> = BTreeSet::new();
    let mut failed: Vec<(usize, Error)> = Vec::new();
    let mut listed = 0;
    while let Some(said) = asked.next().await {
        match said.what {
            Ok(some) => {
                listed += 1;
                names.extend(some);
            }
            Err(error) => failed.push((said.at, error)),
        }
    }
    if listed < core.majority() {
        return Err(core.too_few(&failed, listed));
    }
    // The first of all are among the first of each.
    let limit = usize::try_from(page.limit).unwrap_or(usize::MAX);
    Ok(names.into_iter().take(limit).collect())
}
