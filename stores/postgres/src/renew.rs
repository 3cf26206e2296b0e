//! Renews grants and keeps places.

use leasehold_core::{ClaimRef, Ended, Error, Moment, Renewed};
use serde_json::json;

use crate::answer::renewed;
use crate::connect::ended;
use crate::enter::life;
use crate::line::Reply;
use crate::store::{DOING_RENEW, PostgresStore, micros};

pub(crate) async fn renew(store: &PostgresStore, claims: &[ClaimRef]) -> Vec<Renewed> {
    // All are under way before any is waited for, so that they travel together.
    let sent: Vec<_> = claims
        .iter()
        .map(|claim| match store.check_term(&claim.resource, claim.term) {
            Ok(()) => Ok(store.back().send(&claim.resource, call(store, claim), false)),
            Err(error) => Err(error),
        })
        .collect();
    let mut answers = Vec::with_capacity(claims.len());
    for (claim, sent) in claims.iter().zip(sent) {
        let reply = match sent {
            Ok(answer) => answer.await.unwrap_or_else(|_| Err(ended())),
            Err(error) => Err(error),
        };
        answers.push(answer(store, claim, reply));
    }
    answers
}

fn answer(store: &PostgresStore, claim: &ClaimRef, reply: Result<Reply, Error>) -> Renewed {
    let on =
        |e: Error| Renewed::Unknown(store.named(e).on(&claim.resource).while_doing(DOING_RENEW));
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => return on(error),
    };
    let answer = match renewed(claim.id, &reply.answer) {
        Ok(answer) => answer,
        Err(error) => return on(error),
    };
    if !matches!(answer, Renewed::Waiting(_)) {
        store.hub().forget(claim.id);
    }
    match answer {
        Renewed::Gone(how) => Renewed::Gone(explained(store, claim, how, reply.sent)),
        other => other.map_until(|left| store.believed(reply.sent, left)),
    }
}

/// What took a grant: a standby that did not have it yet, or a clock that stepped over its end.
fn explained(store: &PostgresStore, claim: &ClaimRef, how: Ended, sent: Moment) -> Ended {
    match how {
        Ended::Unknown if claim.token.is_some() && store.promotions() > 0 => Ended::Failover,
        Ended::Expired => {
            let gained = store.clock().stepped_since(sent.before(claim.term));
            let drift = store.drift().within(claim.term).as_micros();
            let stepped = u128::try_from(gained).is_ok_and(|gained| gained > drift);
            if stepped { Ended::Clock } else { how }
        }
        _ => how,
    }
}

fn call(store: &PostgresStore, claim: &ClaimRef) -> String {
    let mut call = json!({
        "verb": "renew",
        "name": claim.resource.as_str(),
        "claim": claim.id.to_string(),
        "term": micros(claim.term),
        "life": life(claim.life),
        "home": store.home(),
    });
    if let Some(token) = claim.token {
        call["token"] = token.get().into();
    }
    call.to_string()
}
