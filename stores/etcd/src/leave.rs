//! Leaving: this claim only, in whatever state it is; with a tombstone where an enter of it may still
//! arrive.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Backoff, ClaimId, ClaimRef, Ended, Error, ErrorKind, Left, Result};

use crate::desk::{Hold, Known};
use crate::keys::{Beside, Keys};
use crate::leases::Use;
use crate::look::{ended, look, seconds};
use crate::proto::RequestOp;
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn;
use crate::value::{End, stamp};

/// How long a tombstone stands at least: a request may be that long on its way to a slow member.
const TOMB_MIN: Duration = Duration::from_secs(30);

pub(crate) async fn leave(inner: Arc<Inner>, rpc: Rpc, claim: ClaimRef) -> Result<Left> {
    let now = inner.clock.now();
    let known = inner.desk().known(claim.id);
    match known {
        Known::Ended(how) => {
            if claim.enter_unanswered {
                bury(&inner, &rpc, &claim).await?;
            }
            Ok(Left::Gone(how))
        }
        Known::Part => {
            let Some(hold) = inner.desk().hold_of(claim.id).cloned() else {
                return Ok(Left::Gone(inner.grave(claim.id)));
            };
            let over = hold.held.is_some() && hold.part(claim.id).is_some_and(|p| p.end <= now);
            if hold.parts.len() > 1 {
                let how = if over { Ended::Expired } else { Ended::Released };
                inner.desk().remove_part(claim.id, how, now);
                return Ok(if over { Left::Gone(how) } else { Left::Released });
            }
            // Another client may have renewed it where its lease is the judge.
            let how =
                if over && !inner.ends_by_lease(&hold) { Ended::Expired } else { Ended::Released };
            let left = end(&inner, &rpc, &hold, how, claim.enter_unanswered).await;
            // Whoever asked may give up when its term is over; the lease goes on for the others.
            let left = left.inspect_err(|_| inner.end_in_background(hold.clone(), how))?;
            Ok(match (left, how) {
                (Left::Released, Ended::Expired) => Left::Gone(how),
                (left, _) => left,
            })
        }
        Known::No => strange(&inner, &rpc, &claim).await,
    }
}

/// Ends the key of a hold with its last claim.
pub(crate) async fn end(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    hold: &Hold,
    how: Ended,
    unanswered: bool,
) -> Result<Left> {
    inner.begin_leaving(hold.key);
    let tomb = match unanswered {
        true => Some(tomb(inner, hold.key, longest(hold), Ended::Released).await?),
        false => None,
    };
    let untold = hold.held.as_ref().map(|held| held.untold);
    let token = hold.held.as_ref().map(|held| held.token);
    let told = untold.map(|untold| End::new(how, hold.key, token, untold));
    let key = hold.keys.claim(hold.key);
    let guard = txn::created_at(key, hold.create);
    let ops = farewell(&hold.keys, hold.key, told, tomb.clone());
    let done = txn::run(rpc, vec![guard], ops, tomb.into_iter().collect()).await;
    let done = done.map_err(|failure| inner.failed(failure).while_doing("leave"))?;
    if done.succeeded {
        inner.drop_hold(hold.key, how);
        return Ok(Left::Released);
    }
    let mirror = look(inner, rpc, &hold.keys).await?;
    Ok(Left::Gone(ended(inner, rpc, hold, hold.key, &mirror).await?))
}

fn longest(hold: &Hold) -> Duration {
    hold.parts.iter().map(|part| part.term).max().unwrap_or_default()
}

/// What goes with a key: a word of how a grant ended, or that a waiter withdrew.
fn farewell(
    keys: &Keys,
    key: ClaimId,
    told: Option<End>,
    tomb: Option<RequestOp>,
) -> Vec<RequestOp> {
    let mut ops = vec![txn::delete(keys.claim(key))];
    match told {
        Some(end) => {
            let (mark, out) = (keys.beside(Beside::Broken(key)), keys.beside(Beside::Out));
            let broken = end.but(Ended::Broken);
            ops.push(txn::nested(
                vec![txn::present(mark.clone())],
                vec![txn::delete(mark), txn::put(out.clone(), broken.write(), 0)],
                vec![txn::put(out, end.write(), 0)],
            ));
        }
        None => ops.push(txn::put(keys.beside(Beside::Gone), stamp(), 0)),
    }
    ops.extend(tomb);
    ops
}

/// A tombstone, on a lease that nobody keeps alive.
pub(crate) async fn tomb(
    inner: &Inner,
    claim: ClaimId,
    term: Duration,
    how: Ended,
) -> Result<RequestOp> {
    let lease = inner.leases.grant(Use::Own, seconds(term.max(TOMB_MIN))).await?;
    inner.leases.forget(lease.id);
    let word = how.word().as_bytes().to_vec();
    Ok(txn::put(inner.layout.tomb(claim), word, lease.id))
}

async fn bury(inner: &Arc<Inner>, rpc: &Rpc, claim: &ClaimRef) -> Result<()> {
    let tomb = tomb(inner, claim.id, claim.term, Ended::Released).await?;
    let done = txn::run(rpc, vec![], vec![tomb], vec![]).await;
    done.map_err(|failure| inner.failed(failure).while_doing("leave"))?;
    Ok(())
}

/// A claim of which this process knows nothing: another one's, or one whose enter had no answer.
async fn strange(inner: &Arc<Inner>, rpc: &Rpc, claim: &ClaimRef) -> Result<Left> {
    let keys = inner.layout.keys(&claim.resource)?;
    for _ in 0..4 {
        let tomb = match claim.enter_unanswered {
            true => Some(tomb(inner, claim.id, claim.term, Ended::Released).await?),
            false => None,
        };
        let mirror = look(inner, rpc, &keys).await?;
        let key = keys.claim(claim.id);
        let Some(standing) = mirror.standing(claim.id) else {
            let guard = vec![txn::absent(key)];
            let done = txn::run(rpc, guard, tomb.into_iter().collect(), vec![]).await;
            let done = done.map_err(|failure| inner.failed(failure).while_doing("leave"))?;
            if !done.succeeded {
                continue; // it has just arrived
            }
            let now = inner.clock.now();
            let how = mirror.end_of(claim.id).unwrap_or(Ended::Unknown);
            if claim.enter_unanswered {
                inner.desk().bury(claim.id, Ended::Released, now, claim.term);
            }
            return Ok(Left::Gone(how));
        };
        let token = standing.entry.token();
        let told = End::new(Ended::Released, claim.id, token, mirror.untold());
        let told = standing.admitted.then_some(told);
        let guard = vec![txn::created_at(key, standing.entry.create)];
        let ops = farewell(&keys, claim.id, told, tomb);
        let done = txn::run(rpc, guard, ops, vec![]).await;
        let done = done.map_err(|failure| inner.failed(failure).while_doing("leave"))?;
        if done.succeeded {
            let now = inner.clock.now();
            inner.desk().bury(claim.id, Ended::Released, now, claim.term);
            return Ok(Left::Released);
        }
    }
    let detail = "the queue changes faster than it can be read";
    Err(Error::new(ErrorKind::Unavailable, "leave", detail).on(&claim.resource))
}

/// Takes a claim back that was not to queue, or not to stand there at all. If that fails, it is
/// tried again in the background, for as long as the key can stand.
pub(crate) async fn withdraw(inner: &Arc<Inner>, rpc: &Rpc, hold: &Hold) {
    let Some(hold) = inner.desk().holds.get(&hold.key).cloned() else { return };
    match end(inner, rpc, &hold, Ended::Released, false).await {
        Ok(_) => inner.desk().exhume(hold.key),
        Err(_) => inner.end_in_background(hold, Ended::Released),
    }
}

/// Sees a claim out whose enter may have been applied although it has left since.
pub(crate) fn see_out(inner: &Arc<Inner>, claim: ClaimRef) {
    let inner = Arc::clone(inner);
    inner.clone().back.spawn(async move {
        let (first, cap) = (Duration::from_millis(50), Duration::from_secs(2));
        let mut backoff = Backoff::new(first, cap, inner.clock.now().as_nanos());
        for _ in 0..60 {
            if strange(&inner, &inner.rpc, &claim).await.is_ok() {
                return;
            }
            tokio::time::sleep(backoff.next_wait()).await;
        }
    });
}

impl Inner {
    /// One claim has ended by itself; with the last of a hold its key goes.
    pub(crate) fn end_part(self: &Arc<Inner>, claim: ClaimId, how: Ended) {
        let now = self.clock.now();
        let hold = {
            let mut desk = self.desk();
            let Some(hold) = desk.hold_of(claim).cloned() else { return };
            if desk.remove_part(claim, how, now) {
                return;
            }
            hold
        };
        self.end_in_background(hold, how);
    }

    pub(crate) fn end_in_background(self: &Arc<Inner>, hold: Hold, how: Ended) {
        self.begin_leaving(hold.key);
        match self.desk().holds.get_mut(&hold.key) {
            Some(known) if !known.ending => known.ending = true,
            _ => return,
        }
        let inner = Arc::clone(self);
        self.back.spawn(async move {
            let seed = u64::try_from(hold.create).unwrap_or_default();
            let (first, cap) = (Duration::from_millis(50), Duration::from_secs(2));
            let mut backoff = Backoff::new(first, cap, seed);
            while end(&inner, &inner.rpc, &hold, how, false).await.is_err() {
                tokio::time::sleep(backoff.next_wait()).await;
                // The cluster has ended the lease, and the key with it.
                if matches!(inner.leases.look(&inner.rpc, hold.lease).await, Ok(None)) {
                    inner.drop_hold(hold.key, how);
                    return;
                }
            }
        });
    }

    /// A lease of its own is the judge of a claim that may be in others' hands too.
    pub(crate) fn ends_by_lease(&self, hold: &Hold) -> bool {
        hold.parts.len() <= 1 && self.leases.what(hold.lease) == Some(Use::Own)
    }

    pub(crate) fn begin_leaving(&self, key: ClaimId) {
        if let Some(hold) = self.desk().holds.get_mut(&key) {
            hold.leaving = true;
            let now = self.clock.now();
            hold.parts.iter_mut().for_each(|part| part.begin(now));
        }
    }

    /// Takes a hold out of the books; a lease of its own goes back.
    pub(crate) fn drop_hold(&self, key: ClaimId, how: Ended) {
        let now = self.clock.now();
        let Some(hold) = self.desk().remove(key, how, now) else { return };
        if self.leases.what(hold.lease) == Some(Use::Own) {
            self.leases.give_back(hold.lease);
        }
    }

    pub(crate) fn mark_broken(&self, key: ClaimId) {
        if let Some(hold) = self.desk().holds.get_mut(&key) {
            hold.broken = true;
        }
    }

    /// How a claim that is not in the books any more has ended.
    pub(crate) fn grave(&self, claim: ClaimId) -> Ended {
        match self.desk().known(claim) {
            Known::Ended(how) => how,
            _ => Ended::Unknown,
        }
    }
}
