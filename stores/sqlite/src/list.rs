//! The names that the store knows.

use leasehold_core::{Page, ResourceName, Result};

use crate::error::{Fail, Step, bad_name};
use crate::store::SqliteStore;
use crate::tx::Tx;

pub(crate) async fn list(store: &SqliteStore, page: &Page) -> Result<Vec<ResourceName>> {
    let (_, names) = store.look(|tx| names(tx, page)).await?;
    Ok(names)
}

/// The names of a page, in byte order.
pub(crate) fn names(tx: &Tx<'_>, page: &Page) -> Step<Vec<ResourceName>> {
    let mut select = tx.db.prepare_cached(include_str!("list.sql"))?;
    let after = page.after.as_ref().map_or("", ResourceName::as_str);
    let mut rows = select.query((page.prefix.as_str(), after))?;
    let mut names = Vec::new();
    while names.len() < page.limit as usize {
        let Some(row) = rows.next()? else { break };
        let text = row.get_ref(0)?.as_str().map_err(|_| Fail::from(bad_name()))?;
        if !text.starts_with(&page.prefix) {
            break;
        }
        names.push(ResourceName::new(text).map_err(|_| bad_name())?);
    }
    Ok(names)
}
