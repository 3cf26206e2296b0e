//! Claims a resource.

use leasehold_core::{Admission, Claim, ClaimRef, Error, ErrorKind, Mode, Place, Previous, Result};

use crate::config::Durability;
use crate::durable;
use crate::hub::Expected;
use crate::keys::{DECIDING, Keys};
use crate::leave;
use crate::link::Lane;
use crate::scripts::ENTER;
use crate::store::RedisStore;
use crate::told::{DOING, Told};
use crate::usual;

pub(crate) async fn enter(store: &RedisStore, claim: &Claim) -> Result<Admission> {
    RedisStore::check_term(&claim.resource, claim.term)?;
    if !claim.mode.is_valid() {
        let detail = "permits must be at least 1 and fit their limit";
        return Err(Error::new(ErrorKind::Usage, DOING, detail));
    }
    let keys = store.keys(&claim.resource)?;
    if let Some(grant) = usual::enter(store, claim, &keys).await? {
        return Ok(Admission::Granted(grant));
    }
    if claim.place == Place::No {
        let told = send(store, claim, &keys).await?;
        return admission(store, claim, told, None);
    }
    // Who is told of a grant before it knows that it waits must be known here before that.
    let expected = Expected::new(store.hub(), claim);
    let was_listening = store.hub().is_listening(&claim.resource);
    let told = send(store, claim, &keys).await?;
    let answer = admission(store, claim, told, Some(&expected))?;
    if was_listening || !matches!(answer, Admission::Waiting(_)) {
        return Ok(expected.keep(answer));
    }
    // Listen, then try: what happened before this process listened, nobody told.
    store.hub().listen(&claim.resource).await.map_err(Error::maybe_applied)?;
    let told = send(store, claim, &keys).await.map_err(Error::maybe_applied)?;
    let answer = admission(store, claim, told, Some(&expected))?;
    Ok(expected.keep(answer))
}

async fn send(store: &RedisStore, claim: &Claim, keys: &Keys) -> Result<Told> {
    let (mode, count, limit) = self::mode(claim.mode);
    let (place, wake) = match claim.place {
        Place::No => (0, b"-".to_vec()),
        Place::Term(term) => (term.as_micros(), store.hub().wake_channel(&claim.resource)),
    };
    let (id, term) = (claim.id.to_string(), claim.term.as_micros());
    let (life, after) = (life(claim.life), claim.after_loss.as_micros());
    let asked = format!("{count} {limit} {term} {life} {place} {after}");
    let mut whose = format!("{} ", claim.holder.id).into_bytes();
    whose.extend_from_slice(&wake);
    let term = term.to_string();
    let [layout, publish, spans] = store.common();
    let args = [
        layout,
        publish,
        spans,
        id.as_bytes(),
        mode.as_bytes(),
        term.as_bytes(),
        asked.as_bytes(),
        &whose,
        claim.holder.label().as_bytes(),
    ];
    let keys = keys.first(DECIDING);
    match store.durability() {
        Durability::Local => store.tell(Lane::Front, &ENTER, &keys, &args).await,
        durability => enter_durably(store, claim, &keys, &args, durability).await,
    }
}

/// A grant that too few replicas have is taken back.
async fn enter_durably(
    store: &RedisStore,
    claim: &Claim,
    keys: &[&[u8]],
    args: &[&[u8]],
    durability: Durability,
) -> Result<Told> {
    let (told, shortfall) = durable::tell(store, &ENTER, keys, args, durability).await?;
    let Some(shortfall) = shortfall else { return Ok(told) };
    let undo = ClaimRef { enter_unanswered: true, ..claim.to_ref() };
    match leave::leave(store, &undo).await {
        Ok(_) => Err(shortfall),
        Err(_) => Err(shortfall.maybe_applied()),
    }
}

fn admission(
    store: &RedisStore,
    claim: &Claim,
    mut told: Told,
    expected: Option<&Expected>,
) -> Result<Admission> {
    let word = told.text()?;
    match word.as_str() {
        "granted" => {
            let grant = told.grant(claim.id)?;
            let is_crowded = store.crowds().has(&claim.resource);
            let sole = claim.mode == Mode::Exclusive && !is_crowded;
            store.vouched_as(claim.id, &told, grant.until, sole);
            if grant.previous != Previous::First {
                store.crowds().note(&claim.resource);
            }
            let until = store.believed(&told, grant.until);
            Ok(Admission::Granted(grant.map_until(|_| until)))
        }
        "waiting" => {
            store.crowds().note(&claim.resource);
            let (waiting, listens) = told.waiting(store.layout())?;
            if let Some(expected) = expected {
                expected.waits(&waiting, listens);
            }
            Ok(Admission::Waiting(waiting))
        }
        "busy" => {
            store.crowds().note(&claim.resource);
            told.busy().map(Admission::Busy)
        }
        "gone" => told.ended().map(Admission::Gone),
        word => Err(told.refusal(word, &claim.resource)),
    }
}

/// A mode's letter, count and limit.
pub(crate) fn mode(mode: Mode) -> (&'static str, u32, u32) {
    match mode {
        Mode::Exclusive => ("X", 0, 0),
        Mode::Shared => ("S", 0, 0),
        Mode::Permits { count, limit } => ("P", count, limit),
    }
}

pub(crate) fn life(life: leasehold_core::Life) -> &'static str {
    match life {
        leasehold_core::Life::Process => "P",
        leasehold_core::Life::Term => "T",
    }
}
