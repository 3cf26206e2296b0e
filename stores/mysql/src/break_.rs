//! An operator's force.

use leasehold_core::{Broken, Error, ErrorKind, ResourceName, Result, Token};

use crate::desk::{Ask, Told};
use crate::error::made;
use crate::store::MysqlStore;

pub(crate) async fn break_(
    store: &MysqlStore,
    resource: &ResourceName,
    expect: Option<Token>,
    now: bool,
) -> Result<Broken> {
    let on = |e: Error| e.on(resource);
    let ask = Ask::Break { resource: resource.clone(), expect, now };
    match store.lanes.ask(ask).await.map_err(on)?.told {
        Told::Broken(broken) => Ok(broken),
        _ => Err(on(made(ErrorKind::Bug, "another request was answered"))),
    }
}
