//! Looking at a resource, and at one claim of ours in it: where it stands, and whether it is
//! granted by now.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{
    ClaimId, ClaimRef, Ended, Error, ErrorKind, Grant, Life, Mode, Moment, ResourceName, Result,
    Waiting,
};

use crate::desk::{Held, Hold, Part};
use crate::keys::{Beside, Keys};
use crate::leases::{Live, Use};
use crate::mirror::{Mirror, Standing, token_of};
use crate::proto::{RANGE, RangeRequest, RangeResponse};
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn;
use crate::value::{Contender, Granted, stamp, wall_us};

/// How often a waiter looks by itself, word or not: a watch may lose events.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);

/// How soon one looks again that could not take the slots that are free.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a look at one claim has told.
#[derive(Debug)]
pub(crate) enum Seen {
    Granted(Grant),
    Waiting(Waiting),
    Gone(Ended),
}

/// A resource as it is now.
pub(crate) async fn look(inner: &Inner, rpc: &Rpc, keys: &Keys) -> Result<Mirror> {
    let ops = vec![txn::range(keys.claims(), 0), txn::range(keys.beside_all(), 0)];
    let mut done = txn::run(rpc, vec![], ops, vec![]).await.map_err(|f| inner.failed(f))?;
    let claims = done.range(0).map_err(|f| inner.failed(f))?.kvs;
    let beside = done.range(1).map_err(|f| inner.failed(f))?.kvs;
    Ok(Mirror::new(keys, done.revision, claims, beside))
}

/// Whether a key is there.
pub(crate) async fn stands(inner: &Inner, key: Vec<u8>) -> Result<bool> {
    let question = RangeRequest { key, count_only: true, ..RangeRequest::default() };
    let answer: RangeResponse =
        inner.rpc.call(RANGE, question).await.map_err(|failure| inner.failed(failure))?;
    Ok(answer.count > 0)
}

/// Looks at a claim that this process has a hold on, and takes the grant if it is its turn.
pub(crate) async fn look_at(inner: &Arc<Inner>, rpc: &Rpc, claim: ClaimId) -> Result<Seen> {
    let mut last = None;
    for _ in 0..8 {
        let Some(hold) = inner.desk().hold_of(claim).cloned() else {
            return Ok(Seen::Gone(inner.grave(claim)));
        };
        let mirror = look(inner, rpc, &hold.keys).await?;
        inner.looked(&hold.resource, &mirror);
        // What is followed may have been granted, or found gone, by this very look.
        let Some(hold) = inner.desk().hold_of(claim).cloned() else {
            return Ok(Seen::Gone(inner.grave(claim)));
        };
        let Some(standing) = mirror.standing(hold.key) else {
            return Ok(Seen::Gone(ended(inner, rpc, &hold, claim, &mirror).await?));
        };
        if hold.broken || mirror.is_broken(hold.key) {
            inner.mark_broken(hold.key);
            return Ok(Seen::Gone(Ended::Broken));
        }
        if let (Some(held), Some(part)) = (&hold.held, hold.part(claim)) {
            inner.desk().unpush(hold.key);
            return Ok(Seen::Granted(hold.grant(part, held)));
        }
        if !standing.admitted {
            return Ok(Seen::Waiting(waiting(&hold, &standing, &mirror, LOOK_EVERY)));
        }
        let now = inner.clock.now();
        let held_back = inner.desk().held_back(&hold.resource, &mirror, hold.after_loss, now);
        if !held_back.is_zero() {
            let recheck = held_back.min(LOOK_EVERY);
            return Ok(Seen::Waiting(waiting(&hold, &standing, &mirror, recheck)));
        }
        if let Some(grant) = confirm(inner, rpc, &hold, claim, &mirror).await? {
            return Ok(Seen::Granted(grant));
        }
        last = Some(waiting(&hold, &standing, &mirror, LOOK_AGAIN));
    }
    // Others take their slots at the same time; its own turn stays.
    let detail = "the queue changes faster than it can be read";
    last.map(Seen::Waiting)
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, "look at the queue", detail))
}

/// A claim of ours is not in the queue any more: how it ended, and out of the books with it.
pub(crate) async fn ended(
    inner: &Inner,
    rpc: &Rpc,
    hold: &Hold,
    claim: ClaimId,
    mirror: &Mirror,
) -> Result<Ended> {
    let told = match mirror.end_of(hold.key) {
        Some(how) => Some(how),
        None => on_tomb(inner, rpc, hold.key).await?,
    };
    let now = inner.clock.now();
    let lease_gone = inner.leases.belief(hold.lease).is_none_or(|belief| belief.end() <= now);
    let over = hold.part(claim).is_none_or(|part| part.until <= now);
    let how = match told {
        Some(how) => how,
        None if lease_gone || over => Ended::Expired,
        None => Ended::Unknown,
    };
    inner.drop_hold(hold.key, how);
    Ok(how)
}

/// What the tombstone of a claim says, if it has one.
async fn on_tomb(inner: &Inner, rpc: &Rpc, claim: ClaimId) -> Result<Option<Ended>> {
    let question = RangeRequest { key: inner.layout.tomb(claim), ..RangeRequest::default() };
    let answer: RangeResponse =
        rpc.call(RANGE, question).await.map_err(|failure| inner.failed(failure))?;
    Ok(answer.kvs.first().map(|kv| word_of(&kv.value)))
}

/// How a claim with this tombstone has ended.
pub(crate) fn word_of(tomb: &[u8]) -> Ended {
    let word = std::str::from_utf8(tomb).ok().and_then(Ended::from_word);
    word.unwrap_or(Ended::Unknown)
}

pub(crate) fn waiting(
    hold: &Hold,
    standing: &Standing,
    mirror: &Mirror,
    recheck_in: Duration,
) -> Waiting {
    Waiting {
        ticket: hold.ticket(),
        ahead: Some(standing.ahead),
        recheck_in,
        holder: mirror.head().map(crate::mirror::Entry::occupant),
    }
}

/// Takes the grant of an admitted claim by a write: guarded by its own key, it moves the key onto
/// the lease for grants; its revision is the token. `None` if something has changed: look again.
async fn confirm(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    hold: &Hold,
    claim: ClaimId,
    mirror: &Mirror,
) -> Result<Option<Grant>> {
    if !inner.begin_confirming(hold.key) {
        return Ok(None);
    }
    let confirmed = confirm_by_write(inner, rpc, hold, claim, mirror).await;
    inner.end_confirming(hold.key);
    confirmed
}

async fn confirm_by_write(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    hold: &Hold,
    claim: ClaimId,
    mirror: &Mirror,
) -> Result<Option<Grant>> {
    let Some((slots, slot_at)) = mirror.slots_for(hold.key, hold.mode) else { return Ok(None) };
    let term = hold.parts.iter().map(|part| part.term).max().unwrap_or_default();
    let lease = inner.lease_for(hold.life, term).await?;
    let granted = Granted { token: None, slots: slots.clone(), since_us: wall_us() };
    let value = contender(hold, term, Some(granted)).write();
    let key = hold.keys.claim(hold.key);
    let mut compare = vec![
        txn::created_at(key.clone(), hold.create),
        txn::absent(hold.keys.beside(Beside::Broken(hold.key))),
    ];
    let mut ops = vec![txn::put(key, value, lease.id)];
    match hold.mode {
        Mode::Exclusive => compare.push(txn::none_before(hold.keys.claims(), hold.create)),
        Mode::Shared => {}
        Mode::Permits { .. } => {
            let slot = hold.keys.beside(Beside::Slot);
            compare.push(txn::modified_at(slot.clone(), slot_at));
            ops.push(txn::put(slot, stamp(), 0));
        }
    }
    let sent = inner.clock.now();
    let done = txn::run(rpc, compare, ops, vec![]).await.map_err(|f| inner.failed(f))?;
    if !done.succeeded {
        inner.unused(lease);
        return Ok(None);
    }
    let Some(token) = token_of(done.revision) else { return Err(used_up()) };
    let held = Held {
        token,
        slots,
        previous: mirror.previous(),
        since_us: wall_us(),
        untold: mirror.untold(),
    };
    Ok(inner.take_grant(hold.key, claim, held, lease, sent))
}

pub(crate) fn used_up() -> Error {
    Error::new(ErrorKind::Unavailable, "grant a claim", "the cluster's revisions are used up")
}

/// What is written into the key of a hold.
pub(crate) fn contender(hold: &Hold, term: Duration, granted: Option<Granted>) -> Contender {
    Contender {
        holder: hold.holder.clone(),
        mode: hold.mode,
        life: hold.life,
        term,
        entered_us: hold.entered_us,
        careful: !hold.after_loss.is_zero(),
        granted,
    }
}

/// Looks at a claim that another process, or an earlier run of this one, has made; takes it into
/// this one's care where it can be passed on.
pub(crate) async fn look_for(inner: &Arc<Inner>, rpc: &Rpc, claim: &ClaimRef) -> Result<Seen> {
    let keys = inner.layout.keys(&claim.resource)?;
    let mirror = look(inner, rpc, &keys).await?;
    let Some(standing) = mirror.standing(claim.id) else {
        let how = match mirror.end_of(claim.id) {
            Some(how) => Some(how),
            None => on_tomb(inner, rpc, claim.id).await?,
        };
        return Ok(Seen::Gone(how.unwrap_or(inner.grave(claim.id))));
    };
    let Some(contender) = standing.entry.contender().cloned() else {
        return Ok(Seen::Gone(Ended::Unknown));
    };
    let ours = inner.leases.what(standing.entry.lease).is_some();
    if contender.life == Life::Process && !ours {
        let detail = "this claim belongs to another process and cannot be passed on";
        return Err(Error::new(ErrorKind::Unsupported, "renew", detail).on(&claim.resource));
    }
    if mirror.is_broken(claim.id) {
        return Ok(Seen::Gone(Ended::Broken));
    }
    let hold = hold_of(&claim.resource, &keys, claim.id, &standing, &contender);
    if !standing.admitted && !ours {
        return Ok(Seen::Waiting(waiting(&hold, &standing, &mirror, LOOK_EVERY)));
    }
    if contender.granted.is_none() {
        inner.desk().insert(hold);
        return look_at(inner, rpc, claim.id).await;
    }
    take_over(inner, rpc, hold, &standing, &contender, &mirror).await
}

/// A granted claim of an own lease comes into our care, with what is left of its term.
async fn take_over(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    mut hold: Hold,
    standing: &Standing,
    contender: &Contender,
    mirror: &Mirror,
) -> Result<Seen> {
    let Some(belief) = inner.leases.look(rpc, hold.lease).await? else {
        return Ok(Seen::Gone(Ended::Expired));
    };
    if contender.life == Life::Term {
        inner.leases.adopt(hold.lease, belief);
    }
    let Some(token) = standing.entry.token() else { return Err(used_up()) };
    let (slots, since_us) = match &contender.granted {
        Some(granted) => (granted.slots.clone(), granted.since_us),
        None => (leasehold_core::Slots::default(), wall_us()),
    };
    let held =
        Held { token, slots, previous: mirror.previous(), since_us, untold: mirror.untold() };
    let now = inner.clock.now();
    for part in &mut hold.parts {
        part.until = belief.end();
        part.end = now + belief.ttl;
    }
    hold.held = Some(held.clone());
    let grant = hold.parts.first().map(|part| hold.grant(part, &held));
    inner.desk().insert(hold);
    Ok(grant.map_or(Seen::Gone(Ended::Unknown), Seen::Granted))
}

fn hold_of(
    resource: &ResourceName,
    keys: &Keys,
    claim: ClaimId,
    standing: &Standing,
    contender: &Contender,
) -> Hold {
    let part = Part {
        claim,
        mode: contender.mode,
        term: contender.term,
        until: Moment::START,
        end: Moment::NEVER,
    };
    Hold {
        key: claim,
        resource: resource.clone(),
        keys: keys.clone(),
        holder: contender.holder.clone(),
        mode: contender.mode,
        create: standing.entry.create,
        lease: standing.entry.lease,
        life: contender.life,
        after_loss: Duration::ZERO,
        entered_us: contender.entered_us,
        held: None,
        parts: vec![part],
        broken: false,
        confirming: false,
        leaving: false,
        ending: false,
    }
}

impl Inner {
    /// The lease for a grant of this life and term.
    pub(crate) async fn lease_for(&self, life: Life, term: Duration) -> Result<Live> {
        let ttl = seconds(term).max(self.ttl_min);
        match life {
            Life::Process => self.leases.common(Use::Shared(ttl), ttl).await,
            Life::Term => self.leases.grant(Use::Own, ttl).await,
        }
    }

    /// A lease that was granted in vain.
    pub(crate) fn unused(&self, lease: Live) {
        if self.leases.what(lease.id) == Some(Use::Own) {
            self.leases.give_back(lease.id);
        }
    }

    fn begin_confirming(&self, key: ClaimId) -> bool {
        let mut desk = self.desk();
        match desk.holds.get_mut(&key) {
            Some(hold) if !hold.confirming && hold.held.is_none() => {
                hold.confirming = true;
                true
            }
            _ => false,
        }
    }

    fn end_confirming(&self, key: ClaimId) {
        if let Some(hold) = self.desk().holds.get_mut(&key) {
            hold.confirming = false;
        }
    }

    /// Writes a confirmed grant into the books.
    fn take_grant(
        &self,
        key: ClaimId,
        claim: ClaimId,
        held: Held,
        lease: Live,
        sent: Moment,
    ) -> Option<Grant> {
        let now = self.clock.now();
        let mut desk = self.desk();
        let hold = desk.holds.get_mut(&key)?;
        hold.lease = lease.id;
        for part in &mut hold.parts {
            part.extend(sent, now, lease.belief);
        }
        hold.held = Some(held.clone());
        let part = hold.part(claim)?;
        Some(hold.grant(part, &held))
    }
}

/// A span in whole seconds, none of them less.
pub(crate) fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}
