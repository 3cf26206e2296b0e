//! Renewal: one question a lease, however many claims stand on it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{ClaimId, ClaimRef, Ended, Error, ErrorKind, Life, Renewed, Result};
use tokio::task::JoinSet;

use crate::desk::{Hold, Known};
use crate::keys::Beside;
use crate::leases::{Belief, Checked, Live, Use};
use crate::look::{Seen, contender, ended, look, look_at, look_for};
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn;
use crate::value::Granted;

pub(crate) async fn renew(inner: Arc<Inner>, rpc: Rpc, claims: Vec<ClaimRef>) -> Vec<Renewed> {
    let mut answers: Vec<Option<Renewed>> = claims.iter().map(|_| None).collect();
    let mut by_lease: HashMap<i64, Vec<usize>> = HashMap::new();
    let mut alone: Vec<usize> = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        match standing(&inner, claim) {
            Stands::Answer(answer) => answers[at] = Some(answer),
            Stands::On(lease) => by_lease.entry(lease).or_default().push(at),
            Stands::Elsewhere => alone.push(at),
        }
    }
    let mut tasks: JoinSet<Vec<(usize, Renewed)>> = JoinSet::new();
    for (lease, places) in by_lease {
        let refs: Vec<(usize, ClaimRef)> =
            places.into_iter().map(|at| (at, claims[at].clone())).collect();
        tasks.spawn(on_lease(Arc::clone(&inner), rpc.clone(), lease, refs));
    }
    for at in alone {
        let (inner, rpc, claim) = (Arc::clone(&inner), rpc.clone(), claims[at].clone());
        tasks.spawn(async move { vec![(at, by_look(&inner, &rpc, &claim).await)] });
    }
    while let Some(done) = tasks.join_next().await {
        for (at, answer) in done.unwrap_or_default() {
            if let Some(place) = answers.get_mut(at) {
                *place = Some(answer);
            }
        }
    }
    let missing = || Renewed::Unknown(Error::new(ErrorKind::Bug, "renew", "a task has broken off"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
}

enum Stands {
    Answer(Renewed),
    /// It holds, on this lease.
    On(i64),
    /// It waits, or another process knows more.
    Elsewhere,
}

fn standing(inner: &Arc<Inner>, claim: &ClaimRef) -> Stands {
    let refused = inner.check_term(&claim.resource, claim.term);
    if let Err(error) = refused {
        return Stands::Answer(Renewed::Unknown(error));
    }
    let now = inner.clock.now();
    let mut desk = inner.desk();
    match desk.known(claim.id) {
        Known::Ended(how) => return Stands::Answer(Renewed::Gone(how)),
        Known::No => return Stands::Elsewhere,
        Known::Part => {}
    }
    let Some(hold) = desk.hold_of(claim.id).cloned() else { return Stands::Elsewhere };
    let Some(held) = &hold.held else { return Stands::Elsewhere };
    if claim.token.is_some_and(|token| token != held.token) {
        return Stands::Answer(Renewed::Gone(Ended::Unknown));
    }
    if hold.broken {
        return Stands::Answer(Renewed::Gone(Ended::Broken));
    }
    let over = hold.part(claim.id).is_none_or(|part| part.end <= now);
    if over && !inner.ends_by_lease(&hold) {
        drop(desk);
        inner.end_part(claim.id, Ended::Expired);
        return Stands::Answer(Renewed::Gone(Ended::Expired));
    }
    Stands::On(hold.lease)
}

async fn by_look(inner: &Arc<Inner>, rpc: &Rpc, claim: &ClaimRef) -> Renewed {
    let known = matches!(inner.desk().known(claim.id), Known::Part);
    let seen =
        if known { look_at(inner, rpc, claim.id).await } else { look_for(inner, rpc, claim).await };
    match seen {
        Err(error) => Renewed::Unknown(error),
        Ok(Seen::Gone(how)) => Renewed::Gone(how),
        Ok(Seen::Waiting(waiting)) => Renewed::Waiting(waiting),
        Ok(Seen::Granted(grant)) if claim.token.is_some_and(|token| token != grant.token) => {
            Renewed::Gone(Ended::Unknown)
        }
        Ok(Seen::Granted(grant)) if known => Renewed::Granted(grant),
        // Another process has made it: what is left of its term is known, now it is renewed.
        Ok(Seen::Granted(grant)) => {
            let Some(hold) = inner.desk().hold_of(claim.id).cloned() else {
                return Renewed::Granted(grant);
            };
            let answers =
                on_lease(Arc::clone(inner), rpc.clone(), hold.lease, vec![(0, claim.clone())]);
            let answer = Box::pin(answers).await.pop();
            answer.map_or(Renewed::Granted(grant), |(_, answer)| answer)
        }
    }
}

/// Renews the grants that stand on one lease.
async fn on_lease(
    inner: Arc<Inner>,
    rpc: Rpc,
    lease: i64,
    claims: Vec<(usize, ClaimRef)>,
) -> Vec<(usize, Renewed)> {
    let checked = inner.leases.check(lease).await;
    let mut answers = Vec::with_capacity(claims.len());
    let mut later = Vec::new();
    for (at, claim) in claims {
        let answer = match &checked {
            Err(error) => Next::Answer(Renewed::Unknown(error.clone())),
            Ok(Checked::Gone) => Next::Missing,
            Ok(Checked::Lives { belief, keys }) => extend(&inner, &claim, lease, *belief, keys),
        };
        match answer {
            Next::Answer(answer) => answers.push((at, answer)),
            next => later.push((at, claim, next)),
        }
    }
    // What has to be written or read for one claim is done for each alone.
    let mut tasks: JoinSet<(usize, Renewed)> = JoinSet::new();
    for (at, claim, next) in later {
        let (inner, rpc) = (Arc::clone(&inner), rpc.clone());
        tasks.spawn(async move {
            let answer = match next {
                Next::Move(life) => moved(&inner, &rpc, &claim, life).await,
                _ => missing(&inner, &rpc, &claim).await,
            };
            (at, answer)
        });
    }
    while let Some(done) = tasks.join_next().await {
        answers.extend(done);
    }
    answers
}

enum Next {
    Answer(Renewed),
    /// Its key is not on the lease any more.
    Missing,
    /// Its key has to go onto another lease, for this life.
    Move(Life),
}

fn extend(
    inner: &Inner,
    claim: &ClaimRef,
    lease: i64,
    belief: Belief,
    keys: &std::collections::HashSet<Vec<u8>>,
) -> Next {
    let now = inner.clock.now();
    let short = inner.leases.what(lease) == Some(Use::Short);
    let mut desk = inner.desk();
    let Some(hold) = desk.hold_of(claim.id) else {
        drop(desk);
        return Next::Answer(Renewed::Gone(inner.grave(claim.id)));
    };
    let Some(held) = hold.held.clone() else { return Next::Missing };
    if hold.lease != lease {
        return Next::Move(claim.life); // it was moved meanwhile, and is asked for where it is
    }
    if !keys.contains(&hold.keys.claim(hold.key)) {
        return Next::Missing;
    }
    if keys.contains(&hold.keys.beside(Beside::Broken(hold.key))) {
        hold.broken = true;
        return Next::Answer(Renewed::Gone(Ended::Broken));
    }
    if short || claim.term > belief.ttl || claim.life != hold.life {
        return Next::Move(claim.life);
    }
    let Some(part) = hold.part_mut(claim.id) else { return Next::Missing };
    part.term = claim.term;
    part.extend(belief.sent, now, belief);
    let part = part.clone();
    Next::Answer(match claim.token {
        Some(_) => Renewed::Alive { until: part.until },
        None => Renewed::Granted(hold.grant(&part, &held)),
    })
}

/// The key is not where it was: how it ended.
async fn missing(inner: &Arc<Inner>, rpc: &Rpc, claim: &ClaimRef) -> Renewed {
    let Some(hold) = inner.desk().hold_of(claim.id).cloned() else {
        return Renewed::Gone(inner.grave(claim.id));
    };
    let mirror = match look(inner, rpc, &hold.keys).await {
        Ok(mirror) => mirror,
        Err(error) => return Renewed::Unknown(error),
    };
    match mirror.standing(hold.key) {
        None => match ended(inner, rpc, &hold, claim.id, &mirror).await {
            Ok(how) => Renewed::Gone(how),
            Err(error) => Renewed::Unknown(error),
        },
        // Another client of the same claim has moved it.
        Some(standing) => {
            if let Some(hold) = inner.desk().hold_of(claim.id) {
                hold.lease = standing.entry.lease;
            }
            if let Ok(Some(belief)) = inner.leases.look(rpc, standing.entry.lease).await {
                inner.leases.adopt(standing.entry.lease, belief);
            }
            let detail = "the claim was moved onto another lease meanwhile";
            Renewed::Unknown(Error::new(ErrorKind::Unavailable, "renew", detail))
        }
    }
}

async fn moved(inner: &Arc<Inner>, rpc: &Rpc, claim: &ClaimRef, life: Life) -> Renewed {
    match move_to(inner, rpc, claim.id, claim.term, life).await {
        Err(error) => Renewed::Unknown(error),
        Ok(Some(how)) => Renewed::Gone(how),
        Ok(None) => {
            let mut desk = inner.desk();
            let Some(hold) = desk.hold_of(claim.id) else {
                return Renewed::Gone(Ended::Unknown);
            };
            let granted = hold.held.as_ref().zip(hold.part(claim.id));
            match (granted, claim.token) {
                (Some((_, part)), Some(_)) => Renewed::Alive { until: part.until },
                (Some((held, part)), None) => Renewed::Granted(hold.grant(part, held)),
                (None, _) => Renewed::Gone(Ended::Unknown),
            }
        }
    }
}

/// Moves the key of a granted claim onto a lease for this life and term, and writes its token into
/// it; how it ended, if it has.
pub(crate) async fn move_to(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    claim: ClaimId,
    term: Duration,
    life: Life,
) -> Result<Option<Ended>> {
    let Some(hold) = inner.desk().hold_of(claim).cloned() else {
        return Ok(Some(inner.grave(claim)));
    };
    let Some(held) = hold.held.clone() else { return Ok(Some(Ended::Unknown)) };
    // No claim of the hold gets less than it has.
    let longest = hold.parts.iter().map(|part| part.term).fold(term, Duration::max);
    let lease = inner.lease_for(life, longest).await?;
    let granted =
        Granted { token: Some(held.token), slots: held.slots.clone(), since_us: held.since_us };
    let value = contender(&Hold { life, ..hold.clone() }, longest, Some(granted)).write();
    let key = hold.keys.claim(hold.key);
    let compare = vec![
        txn::created_at(key.clone(), hold.create),
        txn::absent(hold.keys.beside(Beside::Broken(hold.key))),
    ];
    let sent = inner.clock.now();
    let put = vec![txn::put(key, value, lease.id)];
    let done = txn::run(rpc, compare, put, vec![]).await;
    let done = done.map_err(|f| inner.failed(f).while_doing("renew"))?;
    if !done.succeeded {
        inner.unused(lease);
        let mirror = look(inner, rpc, &hold.keys).await?;
        if mirror.standing(hold.key).is_some() && mirror.is_broken(hold.key) {
            inner.mark_broken(hold.key);
            return Ok(Some(Ended::Broken));
        }
        return Ok(Some(ended(inner, rpc, &hold, claim, &mirror).await?));
    }
    inner.has_moved(claim, term, life, lease, sent);
    Ok(None)
}

impl Inner {
    fn has_moved(
        &self,
        claim: ClaimId,
        term: Duration,
        life: Life,
        lease: Live,
        sent: leasehold_core::Moment,
    ) {
        let now = self.clock.now();
        let mut desk = self.desk();
        let Some(hold) = desk.hold_of(claim) else { return };
        let old = std::mem::replace(&mut hold.lease, lease.id);
        hold.life = life;
        if let Some(part) = hold.part_mut(claim) {
            part.term = term;
            part.extend(sent, now, lease.belief);
        }
        let in_use: BTreeSet<i64> = desk.holds.values().map(|hold| hold.lease).collect();
        drop(desk);
        if old != lease.id && self.leases.what(old) == Some(Use::Own) && !in_use.contains(&old) {
            self.leases.give_back(old);
        }
    }
}
