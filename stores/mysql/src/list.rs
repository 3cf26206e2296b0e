//! The names that the store knows.

use leasehold_core::{Page, ResourceName, Result};

use crate::cells::Cells;
use crate::lit::{Lit, Sql};
use crate::store::MysqlStore;

pub(crate) async fn list(store: &MysqlStore, page: &Page) -> Result<Vec<ResourceName>> {
    let mut sql = Sql::new();
    sql.text("SELECT name FROM leasehold_resource");
    of_page(&mut sql, page);
    // A row that only bars a claim remembers no grant.
    sql.text(" AND (token > 0 OR queued > 0) ORDER BY name LIMIT ").num(page.limit.into());
    let looked = store.lanes.look(sql).await?;
    let rows = looked.sets.into_iter().flat_map(|set| set.rows);
    rows.map(|row| Cells::new(row).name()).collect()
}

/// `WHERE`, as bytes: names with the prefix and after the name.
pub(crate) fn of_page(sql: &mut Sql, page: &Page) {
    let after = page.after.as_ref().map_or("", ResourceName::as_str);
    let (prefix, after) = (page.prefix.as_bytes(), after.as_bytes());
    sql.text(" WHERE name >= ").bytes(prefix).text(" AND name > ").bytes(after);
    if let Some((last, rest)) = prefix.split_last() {
        // No byte of UTF-8 is the last of all.
        let mut end = rest.to_vec();
        end.push(last.saturating_add(1));
        sql.text(" AND name < ").lit(&Lit::Bytes(end));
    }
}
