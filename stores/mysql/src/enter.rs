//! Claims a resource.

use leasehold_core::{Admission, Claim, ErrorKind, Result};

use crate::desk::{Ask, Told};
use crate::error::made;
use crate::store::MysqlStore;
use crate::waiting::looks_again;

pub(crate) async fn enter(store: &MysqlStore, claim: &Claim) -> Result<Admission> {
    MysqlStore::check_term(&claim.resource, claim.term)?;
    let on = |e: leasehold_core::Error| e.on(&claim.resource);
    let answer = store.lanes.ask(Ask::Enter(claim.clone())).await.map_err(on)?;
    match answer.told {
        Told::Entered(Admission::Waiting(waiting)) => Ok(Admission::Waiting(looks_again(waiting))),
        Told::Entered(admission) => {
            Ok(admission.map_until(|left| store.core.believed(answer.sent, left)))
        }
        _ => Err(on(made(ErrorKind::Bug, "another request was answered"))),
    }
}
