//! What happens most, told to the server in few words: claims, releases and renewals of plain
//! locks that nobody waits for. What turns out not to be so, the whole scripts decide.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_core::{
    Applied, Claim, ClaimId, ClaimRef, Clock, Ended, Error, ErrorKind, Grant, Mode, Moment,
    Previous, ResourceName, Result, Slots,
};
use leasehold_net::BootClock;

use crate::config::{Durability, Layout};
use crate::enter::life;
use crate::keys::Keys;
use crate::scripts::{ENTER_USUAL, LEAVE_USUAL};
use crate::store::RedisStore;
use crate::told::{Told, token_of};

/// For how long the whole scripts are told at once about a name where something was not usual.
const CROWDED: Duration = Duration::from_secs(2);

/// Names where something was not as usual lately. Some others may pass for them: they are told to
/// the whole scripts, which is right as well.
#[derive(Debug)]
pub(crate) struct Crowds {
    until: [AtomicU64; 256],
}

impl Crowds {
    pub(crate) fn new() -> Crowds {
        Crowds { until: [const { AtomicU64::new(0) }; 256] }
    }

    fn of(&self, name: &ResourceName) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let [first, ..] = hasher.finish().to_be_bytes();
        &self.until[usize::from(first)]
    }

    pub(crate) fn note(&self, name: &ResourceName) {
        let until = BootClock.now() + CROWDED;
        self.of(name).store(until.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn has(&self, name: &ResourceName) -> bool {
        self.of(name).load(Ordering::Relaxed) > BootClock.now().as_nanos()
    }
}

/// Claims a plain lock that nobody holds or waits for; `None` where it may be otherwise.
pub(crate) async fn enter(
    store: &RedisStore,
    claim: &Claim,
    keys: &Keys,
) -> Result<Option<Grant<Moment>>> {
    let is_usual = claim.mode == Mode::Exclusive && store.durability() == Durability::Local;
    if !is_usual || store.crowds().has(&claim.resource) {
        return Ok(None);
    }
    let whose = whose(store.layout(), claim.id, claim.term);
    let (lasting, life) = (lasting(claim.term), life(claim.life));
    let about = format!("{life} {} {}", claim.holder.id, claim.holder.label());
    let [layout, ..] = store.common();
    let [lock, token, state] = keys.usual();
    let args = [lasting.as_slice(), &whose, about.as_bytes()];
    let keys = [lock, token, state];
    let answer = store.link().call_usual(&ENTER_USUAL, &keys, &[layout], &args).await;
    let mut told = match answer.and_then(Told::read).and_then(|told| store.read(told)) {
        // What hinders this may not hinder an answer.
        Err(error) if is_refused(&error) => return Ok(None),
        told => told?,
    };
    if told.number()? != 1 {
        return Ok(None);
    }
    let token = token_of(told.server_us)?;
    store.vouched_as(claim.id, &told, claim.term, true);
    let until = store.believed(&told, claim.term);
    let previous = Previous::Ended(Ended::Released);
    Ok(Some(Grant { claim: claim.id, token, until, slots: Slots::default(), previous }))
}

/// Releases a plain lock that nobody waits for; whether it was so.
pub(crate) async fn leave(store: &RedisStore, claim: &ClaimRef, keys: &Keys) -> Result<bool> {
    let is_usual = !claim.enter_unanswered && claim.token.is_some() && store.is_sole(claim.id);
    if !is_usual || store.crowds().has(&claim.resource) {
        return Ok(false);
    }
    let whose = whose(store.layout(), claim.id, claim.term);
    let [layout, publish, _] = store.common();
    let [lock, _, state] = keys.usual();
    let link = store.link();
    let answer = link.call_usual(&LEAVE_USUAL, &[lock, state], &[layout, publish], &[&whose]).await;
    match answer.and_then(Told::read).and_then(|told| store.read(told)) {
        Err(error) if is_refused(&error) => Ok(false),
        told => told?.number().map(|done| done == 1),
    }
}

/// What the script for renewals is told of a claim.
pub(crate) fn renewal(layout: Layout, claim: &ClaimRef) -> [Vec<u8>; 2] {
    let token = claim.token.map_or(0, |token| token.get());
    let mut held = format!("{}{token:016}", life(claim.life)).into_bytes();
    held.extend(whose(layout, claim.id, claim.term));
    [held, lasting(claim.term)]
}

/// Whether it was refused, and nothing was done.
pub(crate) fn is_refused(error: &Error) -> bool {
    error.kind() != ErrorKind::Unreachable && error.applied() == Applied::No
}

/// Owner and term as the state has them.
fn whose(layout: Layout, claim: ClaimId, term: Duration) -> Vec<u8> {
    let mut out = Vec::with_capacity(56);
    match layout {
        Layout::Redisson => out.extend(redissons(claim).into_bytes()),
        Layout::Plain => out.extend(claim.to_string().into_bytes()),
    }
    out.extend(format!(" {:014} ", term.as_micros()).into_bytes());
    out
}

/// The owner by which Redisson's clients know a claim of ours.
pub(crate) fn redissons(claim: ClaimId) -> String {
    let hex = claim.to_string();
    let part = |from, to| hex.get(from..to).unwrap_or_default();
    let parts = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)];
    format!("{}:1", parts.join("-"))
}

/// For how many milliseconds the lock is to last: at no time less than the term.
fn lasting(term: Duration) -> Vec<u8> {
    (term.as_micros().div_ceil(1000) + 1).to_string().into_bytes()
}
