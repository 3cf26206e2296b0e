//! Renews grants and keeps places.

use std::time::Duration;

use leasehold_core::{ClaimRef, Ended, Error, Moment, Renewed, Result};
use serde_json::json;

use crate::answer::{Read, renewed};
use crate::connect::ended;
use crate::enter::life;
use crate::error::locked;
use crate::line::{Manner, Reply};
use crate::store::{DOING_RENEW, PostgresStore, micros};

/// How often those whose row was locked are asked for again together, and after how long: most rows
/// are locked for one commit.
const AGAIN: [Duration; 4] = [ms(2), ms(4), ms(8), ms(16)];

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) async fn renew(store: &PostgresStore, claims: &[ClaimRef]) -> Vec<Renewed> {
    // One alone may wait for its row. Of many, those whose row somebody has locked do not keep the
    // others waiting: they are told unknown, and come again alone.
    let manner = if claims.len() == 1 { Manner::Patient } else { Manner::Hasty };
    let mut replies: Vec<Option<Result<Reply>>> = claims.iter().map(|_| None).collect();
    let mut pauses = AGAIN.iter();
    loop {
        let open: Vec<usize> = (0..claims.len()).filter(|&n| is_open(&replies[n])).collect();
        ask(store, claims, &open, manner, &mut replies).await;
        let skipped = replies.iter().any(is_open);
        match pauses.next() {
            Some(pause) if skipped && manner == Manner::Hasty => store.pause(*pause).await,
            _ => break,
        }
    }
    let answered = claims.iter().zip(replies);
    answered
        .map(|(claim, reply)| answer(store, claim, reply.unwrap_or_else(|| Err(ended()))))
        .collect()
}

/// Not asked for yet, or skipped.
fn is_open(reply: &Option<Result<Reply>>) -> bool {
    match reply {
        None => true,
        Some(Ok(reply)) => Read(&reply.answer).is() == "skipped",
        Some(Err(_)) => false,
    }
}

/// Asks for these; all are under way before any is waited for, so that they travel together.
async fn ask(
    store: &PostgresStore,
    claims: &[ClaimRef],
    which: &[usize],
    manner: Manner,
    replies: &mut [Option<Result<Reply>>],
) {
    let send = |&n: &usize| {
        let claim = &claims[n];
        store.check_term(&claim.resource, claim.term)?;
        Ok(store.back().send(&claim.resource, call(store, claim), manner))
    };
    let sent: Vec<Result<_>> = which.iter().map(send).collect();
    for (&n, sent) in which.iter().zip(sent) {
        replies[n] = Some(match sent {
            Ok(reply) => reply.await.unwrap_or_else(|_| Err(ended())),
            Err(error) => Err(error),
        });
    }
}

fn answer(store: &PostgresStore, claim: &ClaimRef, reply: Result<Reply, Error>) -> Renewed {
    let on =
        |e: Error| Renewed::Unknown(store.named(e).on(&claim.resource).while_doing(DOING_RENEW));
    let reply = match reply {
        Ok(reply) => reply,
        Err(error) => return on(error),
    };
    if Read(&reply.answer).is() == "skipped" {
        return on(locked());
    }
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
