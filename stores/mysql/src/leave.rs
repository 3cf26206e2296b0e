//! Ends a claim and hands over.

use leasehold_core::{ClaimRef, ErrorKind, Left, Result};

use crate::desk::{Ask, Told};
use crate::error::made;
use crate::store::MysqlStore;

pub(crate) async fn leave(store: &MysqlStore, claim: &ClaimRef) -> Result<Left> {
    let on = |e: leasehold_core::Error| e.on(&claim.resource);
    match store.lanes.ask(Ask::Leave(claim.clone())).await.map_err(on)?.told {
        Told::Left(left) => Ok(left),
        _ => Err(on(made(ErrorKind::Bug, "another request was answered"))),
    }
}
