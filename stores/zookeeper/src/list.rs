//! Listing names: those remembered, and those with a queue of foreign clients only.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold_core::{Page, ResourceName, Result};

use crate::config::Naming;
use crate::hall::{Hall, children, maybe};
use crate::names::{OWN, unescape};
use crate::wire::Op;

pub(crate) async fn list(hall: &Arc<Hall>, page: &Page) -> Result<Vec<ResourceName>> {
    let now = hall.session().await?;
    let root = if hall.config.root.is_empty() { "/" } else { &hall.config.root };
    let own = format!("{}/{OWN}", hall.config.root);
    let call = |op: &Op| hall.wire.call(now.generation, op);
    let sync = call(&Op::Sync { path: own.clone() });
    let remembered = call(&Op::Children { path: own, watch: false });
    let queues = call(&Op::Children { path: root.into(), watch: false });
    let failed = |fail| hall.error(fail);
    sync.answer().await.result.map_err(failed)?;
    let remembered = maybe(children(remembered.answer().await.result)).map_err(failed)?;
    let queues = maybe(children(queues.answer().await.result)).map_err(failed)?;
    let mut names: BTreeSet<ResourceName> =
        remembered.unwrap_or_default().iter().filter_map(|node| unescape(node)).collect();
    for node in queues.unwrap_or_default() {
        let is_own = node.starts_with(OWN) || (root == "/" && node == "zookeeper");
        let name = match hall.config.naming {
            Naming::Escaped => unescape(&node),
            Naming::Raw => ResourceName::new(&node).ok(),
        };
        names.extend(name.filter(|_| !is_own));
    }
    let after = |name: &ResourceName| page.after.as_ref().is_none_or(|after| name > after);
    let fits = |name: &ResourceName| name.as_str().starts_with(&page.prefix) && after(name);
    Ok(names.into_iter().filter(fits).take(page.limit as usize).collect())
}
