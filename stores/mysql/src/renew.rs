//! Renews grants and keeps places.

use std::sync::Arc;

use leasehold_core::{ClaimRef, Error, ErrorKind, Renewed};

use crate::back::renewed;
use crate::desk::Ask;
use crate::error::made;
use crate::store::MysqlStore;

pub(crate) async fn renew(store: &MysqlStore, claims: &[ClaimRef]) -> Vec<Renewed> {
    let good: Vec<ClaimRef> = claims
        .iter()
        .filter(|claim| MysqlStore::check_term(&claim.resource, claim.term).is_ok())
        .cloned()
        .collect();
    let (back, asked) = (Arc::clone(&store.back), good.clone());
    let task = async move { back.renew(&asked).await };
    let answers = match store.core.io.on_back("renew", task).await {
        Ok(answers) => answers,
        Err(error) => good.iter().map(|_| Some(Err(error.clone()))).collect(),
    };
    let mut answers = answers.into_iter();
    let mut all = Vec::with_capacity(claims.len());
    for claim in claims {
        if let Err(error) = MysqlStore::check_term(&claim.resource, claim.term) {
            all.push(renewed(Err(error), &store.core, claim));
            continue;
        }
        let answer = match answers.next().flatten() {
            Some(answer) => answer,
            // Its row is locked, or not there: alone it may wait for it.
            None if claims.len() == 1 => store.lanes.ask(Ask::Renew(claim.clone())).await,
            None => Err(locked()),
        };
        all.push(renewed(answer, &store.core, claim));
    }
    all
}

fn locked() -> Error {
    made(ErrorKind::Unavailable, "its row is locked by another transaction")
        .advise("see which transaction keeps rows of leasehold's tables locked, and end it")
}
