//! Renews grants and keeps places, many in one step.

use leasehold_core::{ClaimRef, Error, Renewed, Result};

use crate::config::Durability;
use crate::durable;
use crate::enter::life;
use crate::keys::{DECIDING, Keys};
use crate::link::{Call, Lane, slot_of};
use crate::scripts::{RENEW, RENEW_USUAL};
use crate::store::{RedisStore, micros};
use crate::told::{Told, corrupt};
use crate::usual;

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
    let mut usual: Batches<'_> = Batches::of(store);
    let mut batches: Batches<'_> = Batches::of(store);
    for (index, claim) in claims.iter().enumerate() {
        let fit = RedisStore::check_term(&claim.resource, claim.term);
        match fit.and_then(|()| store.keys(&claim.resource)) {
            Ok(keys) => {
                let is_usual = claim.token.is_some() && store.is_sole(claim.id);
                let all = if is_usual { &mut usual } else { &mut batches };
                all.sort_in((index, claim, keys));
            }
            Err(error) => place(index, Renewed::Unknown(error.on(&claim.resource))),
        }
    }
    let calls = usual.all.iter().map(|batch| usual_call(store, batch)).collect();
    let answered = store.link().call_each(Lane::Renewals, calls).await;
    for (batch, answer) in usual.all.into_iter().zip(answered) {
        let mut told = match answer.and_then(Told::read).and_then(|told| store.read(told)) {
            Err(error) if !usual::is_refused(&error) => {
                for (index, claim, _) in batch.claims {
                    place(index, Renewed::Unknown(error.clone().on(&claim.resource)));
                }
                continue;
            }
            told => told.ok(),
        };
        for (index, claim, keys) in batch.claims {
            let is_done = told.as_mut().and_then(|told| told.number().ok()) == Some(1);
            if let Some(told) = told.as_ref().filter(|_| is_done) {
                store.vouched(claim.id, told, claim.term);
                place(index, Renewed::Alive { until: store.believed(told, claim.term) });
            } else {
                store.not_sole(claim.id);
                batches.sort_in((index, claim, keys));
            }
        }
    }
    // A grant that another's release made counts once replicas have a write of our own.
    let (confirmed, plain): (Vec<_>, Vec<_>) = batches.all.into_iter().partition(|batch| {
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

/// Claims sorted into batches.
struct Batches<'c> {
    all: Vec<Batch<'c>>,
    is_cluster: bool,
}

impl<'c> Batches<'c> {
    fn of(store: &RedisStore) -> Batches<'c> {
        Batches { all: Vec::new(), is_cluster: store.link().facts().cluster }
    }

    fn sort_in(&mut self, claim: (usize, &'c ClaimRef, Keys)) {
        let slot = if self.is_cluster { slot_of(claim.2.lock()) } else { 0 };
        let open = self.all.iter_mut().rev().find(|b| b.slot == slot && b.claims.len() < BATCH);
        match open {
            Some(batch) => batch.claims.push(claim),
            None => self.all.push(Batch { slot, claims: vec![claim] }),
        }
    }
}

/// Of claims that hold and for whose locks nobody waits.
fn usual_call(store: &RedisStore, batch: &Batch<'_>) -> Call {
    let [layout, ..] = store.common();
    let (mut keys, mut args) = (Vec::new(), vec![layout.to_vec()]);
    for (_, claim, of) in &batch.claims {
        let [lock, _, state] = of.usual();
        keys.extend([lock.to_vec(), state.to_vec()]);
        args.extend(usual::renewal(store.layout(), claim));
    }
    Call { script: &RENEW_USUAL, keys, args }
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
