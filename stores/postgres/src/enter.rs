//! Claims a resource.

use leasehold_core::{Admission, Claim, Life, Mode, Place, Result};
use serde_json::{Map, Value};

use crate::answer::admission;
use crate::line::Manner;
use crate::quick::{Take, Usual};
use crate::store::{PostgresStore, micros};

pub(crate) async fn enter(store: &PostgresStore, claim: &Claim) -> Result<Admission> {
    store.check(claim)?;
    if claim.place != Place::No {
        store.expect(claim);
    }
    let call = call(store, claim);
    let reply =
        store.front().call_usual(&claim.resource, call, Manner::Patient, usual(claim)).await?;
    let answer = admission(claim.id, claim.mode, &reply.answer);
    match &answer {
        Ok(Admission::Waiting(_)) => {}
        _ => store.hub().forget(claim.id),
    }
    let answer = answer?;
    if matches!(answer, Admission::Granted(_)) {
        store.ready_to_renew();
    }
    Ok(answer.map_until(|left| store.believed(reply.sent, left)))
}

/// What it is where nobody else is.
fn usual(claim: &Claim) -> Option<Usual> {
    (claim.mode == Mode::Exclusive).then(|| {
        Usual::Take(Take {
            claim: claim.id.to_string(),
            holder: claim.holder.id.to_string(),
            label: claim.holder.label().to_owned(),
            term_us: micros(claim.term),
            life: life(claim.life),
            after_loss_us: micros(claim.after_loss),
        })
    })
}

fn call(store: &PostgresStore, claim: &Claim) -> String {
    let mut call = Map::new();
    let mut put = |key: &str, value: Value| drop(call.insert(key.to_owned(), value));
    put("verb", "enter".into());
    put("name", claim.resource.as_str().into());
    put("claim", claim.id.to_string().into());
    put("holder", claim.holder.id.to_string().into());
    put("label", claim.holder.label().into());
    match claim.mode {
        Mode::Exclusive => put("mode", "exclusive".into()),
        Mode::Shared => put("mode", "shared".into()),
        Mode::Permits { count, limit } => {
            put("mode", "permits".into());
            put("count", count.into());
            put("limit", limit.into());
        }
    }
    put("term", micros(claim.term).into());
    put("life", life(claim.life).into());
    if let Place::Term(place) = claim.place {
        put("place", micros(place).into());
    }
    if !claim.after_loss.is_zero() {
        put("after_loss", micros(claim.after_loss).into());
    }
    put("home", store.home().into());
    Value::Object(call).to_string()
}

pub(crate) fn life(life: Life) -> &'static str {
    match life {
        Life::Process => "process",
        Life::Term => "term",
    }
}
