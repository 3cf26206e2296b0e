//! Renews grants and keeps places, many in one step.

use leasehold_core::{ClaimRef, Error, Renewed, Result};

use crate::config::Durability;
use crate::durable;
use crate::enter::life;
use crate::keys::{DECIDING, Keys};
use crate::link::{Call, Lane, slot_of};
use crate::scripts::RENEW;
use crate::store::{RedisStore, micros};
use crate::told::{Told, corrupt};

/// How many claims one script renews.
const BATCH: usize = 100;

/// Claims that one script can renew together.
struct Batch<'c> {
    slot: u16,
    claims: Vec<(usize, &'c ClaimRef, Keys)>,
}

pub(crate) async fn renew(store: &RedisStore, claims: &[ClaimRef]) -> Vec<Renewed> {
    let mut answers: Vec<Option<Renewed>> = claims.iter().map(|_| None).collect();
    let mut place = |index: usize, answer: Renewed| {
        if let Some(slot) = answers.get_mut(index) {
            *slot = Some(answer);
        }
    };
    let mut batches: Vec<Batch<'_>> = Vec::new();
    let is_cluster = store.link().facts().cluster;
    for (index, claim) in claims.iter().enumerate() {
        let fit = RedisStore::check_term(&claim.resource, claim.term);
        match fit.and_then(|()| store.keys(&claim.resource)) {
            Ok(keys) => {
                let slot = if is_cluster { slot_of(keys.lock()) } else { 0 };
                sort_in(&mut batches, slot, (index, claim, keys));
            }
            Err(error) => place(index, Renewed::Unknown(error.on(&claim.resource))),
        }
    }
    // A grant that another's release made counts once replicas have a write of our own.
    let (confirmed, plain): (Vec<_>, Vec<_>) = batches.into_iter().partition(|batch| {
        store.durability() != Durability::Local
            && batch.claims.iter().any(|(_, claim, _)| claim.token.is_none())
    });
    for batch in confirmed {
        let told = confirm(store, &batch).await;
        for (index, answer) in read(store, batch, told) {
            place(index, answer);
        }
    }
    let calls: Vec<Call> = plain.iter().map(|batch| call(store, batch)).collect();
    let answered = store.link().call_each(Lane::Renewals, calls).await;
    for (batch, answer) in plain.into_iter().zip(answered) {
        let told = answer.and_then(Told::read).and_then(|told| store.read(told));
        for (index, answer) in read(store, batch, told) {
            place(index, answer);
        }
    }
    let missing = || Renewed::Unknown(corrupt("an answer is missing"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}

fn sort_in<'c>(batches: &mut Vec<Batch<'c>>, slot: u16, claim: (usize, &'c ClaimRef, Keys)) {
    let open = batches.iter_mut().rev().find(|b| b.slot == slot && b.claims.len() < BATCH);
    match open {
        Some(batch) => batch.claims.push(claim),
        None => batches.push(Batch { slot, claims: vec![claim] }),
    }
}

fn call(store: &RedisStore, batch: &Batch<'_>) -> Call {
    let mut args: Vec<Vec<u8>> = store.common().map(<[u8]>::to_vec).into();
    let mut keys = Vec::with_capacity(batch.claims.len() * DECIDING);
    for (_, claim, of) in &batch.claims {
        keys.extend(of.first(DECIDING).into_iter().map(<[u8]>::to_vec));
        args.extend([
            claim.id.to_string().into_bytes(),
            claim.token.map_or(0, |token| token.get()).to_string().into_bytes(),
            micros(claim.term),
            life(claim.life).into(),
            store.hub().wake_channel(&claim.resource),
        ]);
    }
    Call { script: &RENEW, keys, args }
}

async fn confirm(store: &RedisStore, batch: &Batch<'_>) -> Result<Told> {
    let Call { script, keys, args } = call(store, batch);
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
    let (told, shortfall) = durable::tell(store, script, &keys, &args, store.durability()).await?;
    shortfall.map_or(Ok(told), |error| Err(error.maybe_applied()))
}

fn read(store: &RedisStore, batch: Batch<'_>, told: Result<Told>) -> Vec<(usize, Renewed)> {
    let mut told = told;
    let mut answers = Vec::with_capacity(batch.claims.len());
    for (index, claim, keys) in batch.claims {
        let answer = match &mut told {
            Ok(told) => one(store, claim, &keys, told),
            Err(error) => Err(error.clone()),
        };
        let unknown = |error: Error| Renewed::Unknown(error.on(&claim.resource));
        answers.push((index, answer.unwrap_or_else(unknown)));
    }
    answers
}

fn one(store: &RedisStore, claim: &ClaimRef, keys: &Keys, all: &mut Told) -> Result<Renewed> {
    let item = all.item()?;
    let mut told = all.part(item)?;
    let word = told.text()?;
    match word.as_str() {
        "alive" => {
            let left = told.span()?;
            store.vouched(claim.id, &told, left);
            Ok(Renewed::Alive { until: store.believed(&told, left) })
        }
        "granted" => {
            let grant = told.grant(claim.id)?;
            store.hub().forget(claim.id);
            store.vouched(claim.id, &told, grant.until);
            let until = store.believed(&told, grant.until);
            Ok(Renewed::Granted(grant.map_until(|_| until)))
        }
        "waiting" => {
            let (waiting, listens) = told.waiting(store.layout())?;
            store.hub().waits(claim.id, &claim.resource, &waiting, listens);
            Ok(Renewed::Waiting(waiting))
        }
        "gone" => {
            let how = told.ended()?;
            store.hub().forget(claim.id);
            Ok(Renewed::Gone(store.why(claim.id, keys, &told, how)))
        }
        word => Err(told.refusal(word, &claim.resource)),
    }
}
