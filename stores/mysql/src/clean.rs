//! Forgets names that are idle for long, a transaction each.

use std::time::Duration;

use leasehold_core::{Cleaned, ErrorKind, Page, Result};

use crate::cells::{Cells, span_micros};
use crate::desk::{Ask, Told};
use crate::error::made;
use crate::list::of_page;
use crate::lit::{Lit, Sql};
use crate::store::MysqlStore;

/// How many graves of names that are gone one call takes away.
const GRAVES: u64 = 500;

pub(crate) async fn clean(
    store: &MysqlStore,
    keep: Duration,
    page: &Page,
    dry: bool,
) -> Result<Cleaned> {
    let mut sql = Sql::new();
    sql.text("SELECT name, token > 0 OR queued > 0, used <= ").text(&store.core.clocks.server);
    sql.text(" AND ").text(&store.core.clocks.server).text(" - used >= ").num(span_micros(keep));
    sql.text(" FROM leasehold_resource");
    of_page(&mut sql, page);
    sql.text(" ORDER BY name LIMIT ").num(page.limit.into());
    let looked = store.lanes.look(sql).await?;
    let mut cleaned = Cleaned::default();
    let (mut count, mut last) = (0, None);
    for row in looked.sets.into_iter().flat_map(|set| set.rows) {
        let mut cells = Cells::new(row);
        let name = cells.name()?;
        let (known, idle) = (cells.flag()?, cells.flag()?);
        count += 1;
        last = Some(name.clone());
        if !idle {
            continue;
        }
        let ask = Ask::Clean { resource: name.clone(), keep, dry };
        match store.lanes.ask(ask).await.map_err(|e| e.on(&name))?.told {
            Told::Cleaned(true) if known => cleaned.names.push(name),
            Told::Cleaned(_) => {}
            _ => return Err(made(ErrorKind::Bug, "another request was answered")),
        }
    }
    if count == page.limit {
        cleaned.next = last;
    } else if !dry {
        clear_graves(store).await?;
    }
    Ok(cleaned)
}

/// What remembers claims of names that are gone, once that has run out.
async fn clear_graves(store: &MysqlStore) -> Result<()> {
    let mut sql = Sql::new();
    sql.text("SELECT g.resource, g.claim FROM leasehold_grave g LEFT JOIN leasehold_resource r ");
    sql.text("ON r.name = g.resource WHERE r.name IS NULL AND g.until <= ");
    sql.text(&store.core.clocks.server).text(" LIMIT ").num(GRAVES);
    let looked = store.lanes.look(sql).await?;
    let mut sql = Sql::new();
    for row in looked.sets.into_iter().flat_map(|set| set.rows) {
        let mut cells = Cells::new(row);
        let (resource, claim) = (cells.name()?, cells.claim()?);
        // A statement a row, each its own transaction: it waits for one lock at most.
        sql.fill(
            "DELETE FROM leasehold_grave WHERE resource = {name} AND claim = {claim};",
            &[("name", &Lit::word(resource.as_str())), ("claim", &Lit::id(claim.bits()))],
        );
    }
    if !sql.is_empty() {
        store.lanes.look(sql).await?;
    }
    Ok(())
}
