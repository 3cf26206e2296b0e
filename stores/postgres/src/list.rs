//! The names that the store knows.

use leasehold_core::{Page, ResourceName, Result};

use crate::error::{failed, strange};
use crate::line::Text;
use crate::store::{PostgresStore, statement};

pub(crate) async fn list(store: &PostgresStore, page: &Page) -> Result<Vec<ResourceName>> {
    let after = page.after.as_ref().map_or("", ResourceName::as_str);
    let params = vec![
        Text::One(page.prefix.clone()),
        Text::One(after.to_owned()),
        Text::Int(page.limit.into()),
    ];
    let rows = store.front().query(statement(store, include_str!("sql/list.sql")), params).await?;
    let mut names = Vec::new();
    for row in rows {
        let name: String = row.try_get(0).map_err(|e| failed(e).into_error())?;
        if !name.starts_with(&page.prefix) {
            break;
        }
        names.push(ResourceName::new(&name).map_err(|_| strange("a name"))?);
    }
    Ok(names)
}
