//! Entering: one transaction that grants a free resource, and queues the claim where it is not free.

use std::sync::Arc;

use leasehold_core::{
    Admission, Busy, Claim, ClaimId, ClaimRef, Ended, Error, ErrorKind, Kind, Life, Mode, Moment,
    Place, Result, Slots,
};

use crate::desk::{Held, Hold, Known, Part};
use crate::keys::{Beside, Keys};
use crate::leases::{Belief, Live, Use};
use crate::look::{LOOK_EVERY, Seen, contender, look, look_at, look_for, used_up, waiting};
use crate::mirror::{Mirror, token_of};
use crate::proto::RequestOp;
use crate::rpc::Rpc;
use crate::store::Inner;
use crate::txn::{self, Done};
use crate::value::{Granted, stamp, wall_us};

/// The most claims one resource holds.
const QUEUE_MAX: i64 = 10_000;

pub(crate) async fn enter(inner: Arc<Inner>, rpc: Rpc, claim: Claim) -> Result<Admission> {
    check(&inner, &claim)?;
    let keys = inner.layout.keys(&claim.resource)?;
    match known(&inner, &claim)? {
        Here::Ended(how) => return Ok(Admission::Gone(how)),
        Here::Part => {
            let seen = look_at(&inner, &rpc, claim.id).await?;
            return Ok(admission(seen));
        }
        Here::Inner(outer) => {
            if let Some(admission) = reenter(&inner, &rpc, &claim, outer).await? {
                return Ok(admission);
            }
        }
        Here::No => {}
    }
    if claim.place == Place::No
        && (claim.mode != Mode::Exclusive || !claim.after_loss.is_zero())
        && let Some(busy) = busy_by_look(&inner, &rpc, &claim, &keys).await?
    {
        return Ok(Admission::Busy(busy));
    }
    Enter { inner, rpc, claim, keys }.run().await
}

/// What this process knows of a claim that is to enter.
enum Here {
    No,
    Ended(Ended),
    /// It has entered.
    Part,
    /// It may re-enter this hold.
    Inner(ClaimId),
}

fn known(inner: &Inner, claim: &Claim) -> Result<Here> {
    let now = inner.clock.now();
    let desk = inner.desk();
    match desk.known(claim.id) {
        Known::Ended(how) => return Ok(Here::Ended(how)),
        Known::Part => return Ok(Here::Part),
        Known::No => {}
    }
    let outer = desk.outer(claim).map_err(|_| {
        let detail = "this holder has a shared grant, and a shared grant is not upgraded";
        Error::new(ErrorKind::Usage, "enter the queue", detail).on(&claim.resource)
    })?;
    let Some(key) = outer else { return Ok(Here::No) };
    let Some(hold) = desk.holds.get(&key) else { return Ok(Here::No) };
    let Some(belief) = inner.leases.belief(hold.lease) else { return Ok(Here::No) };
    // Only what still stands can be entered again.
    if belief.end() <= now || hold.parts.iter().all(|part| part.end <= now) {
        return Ok(Here::No);
    }
    Ok(Here::Inner(key))
}

/// Enters what its holder holds already; `None` if that does not stand any more, or is broken. An
/// inner claim that asks for a longer term than the lease gives moves the key first.
async fn reenter(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    claim: &Claim,
    outer: ClaimId,
) -> Result<Option<Admission>> {
    let Some(hold) = inner.desk().holds.get(&outer).cloned() else { return Ok(None) };
    let mirror = look(inner, rpc, &hold.keys).await?;
    if mirror.is_broken(outer) {
        inner.mark_broken(outer);
        return Ok(None);
    }
    if mirror.standing(outer).is_none() {
        return Ok(None);
    }
    let now = inner.clock.now();
    let Some(belief) = inner.leases.belief(hold.lease) else { return Ok(None) };
    let mut part = Part::new(claim);
    part.extend(now, now, belief);
    inner.desk().join(outer, part);
    if claim.term > belief.ttl
        && let Err(error) = crate::renew::move_to(inner, rpc, claim.id, claim.term, hold.life).await
    {
        inner.desk().remove_part(claim.id, Ended::Released, now);
        inner.desk().exhume(claim.id);
        return Err(error);
    }
    let hold = inner.desk().hold_of(claim.id).cloned();
    let granted =
        hold.as_ref().and_then(|hold| Some(hold.grant(hold.part(claim.id)?, hold.held.as_ref()?)));
    let gone = || Admission::Gone(inner.grave(claim.id));
    Ok(Some(granted.map_or_else(gone, Admission::Granted)))
}

fn check(inner: &Inner, claim: &Claim) -> Result<()> {
    let refuse = |detail: String| {
        Err(Error::new(ErrorKind::Usage, "enter the queue", detail).on(&claim.resource))
    };
    if !claim.mode.is_valid() {
        return refuse("permits must be at least 1 and fit their limit".into());
    }
    inner.check_term(&claim.resource, claim.term)
}

pub(crate) fn admission(seen: Seen) -> Admission {
    match seen {
        Seen::Granted(grant) => Admission::Granted(grant),
        Seen::Waiting(waiting) => Admission::Waiting(waiting),
        Seen::Gone(how) => Admission::Gone(how),
    }
}

/// Whether a claim that does not queue would be admitted, before anything is written.
async fn busy_by_look(
    inner: &Arc<Inner>,
    rpc: &Rpc,
    claim: &Claim,
    keys: &Keys,
) -> Result<Option<Busy>> {
    let mirror = look(inner, rpc, keys).await?;
    check_kind(claim, mirror.kind(Some(claim.id)))?;
    if !mirror.would_admit(claim.mode) {
        return Ok(Some(busy(&mirror)));
    }
    let now = inner.clock.now();
    let held_back = inner.desk().held_back(&claim.resource, &mirror, claim.after_loss, now);
    let free_in = (!held_back.is_zero()).then_some(held_back);
    Ok(free_in.map(|free_in| Busy { holder: None, free_in: Some(free_in) }))
}

fn busy(mirror: &Mirror) -> Busy {
    Busy { holder: mirror.head().map(crate::mirror::Entry::occupant), free_in: None }
}

fn check_kind(claim: &Claim, kind: Option<Kind>) -> Result<()> {
    match kind {
        Some(kind) if kind != claim.mode.kind() => {
            let detail = match (kind, claim.mode.kind()) {
                (Kind::Permits { limit }, Kind::Permits { limit: asked }) => {
                    format!("it has {limit} permits, not {asked}")
                }
                (Kind::Permits { limit }, Kind::Lock) => {
                    format!("it is a semaphore of {limit} permits, not a lock")
                }
                (Kind::Lock, _) => "it is a lock, not a semaphore".into(),
            };
            Err(Error::new(ErrorKind::Usage, "enter the queue", detail).on(&claim.resource))
        }
        _ => Ok(()),
    }
}

/// A claim of which this process knows nothing yet.
struct Enter {
    inner: Arc<Inner>,
    rpc: Rpc,
    claim: Claim,
    keys: Keys,
}

/// The leases that the claim's key may stand on.
struct Leases {
    long: Live,
    /// `None` until the claim is known to have to wait.
    short: Option<Live>,
}

impl Enter {
    async fn run(self) -> Result<Admission> {
        let inner = &self.inner;
        let mut leases = self.leases().await?;
        for _ in 0..4 {
            if let Some(how) = self.has_left() {
                return Ok(Admission::Gone(how));
            }
            let sent = inner.clock.now();
            let full =
                !(self.claim.mode == Mode::Exclusive && inner.is_followed(&self.claim.resource));
            let done = match self.ask(&leases, full).await {
                Ok(done) => done,
                Err(failure) if failure.cause == crate::error::Cause::LeaseGone => {
                    leases = self.anew(&leases).await?;
                    continue;
                }
                Err(failure) => {
                    if let Some(how) = self.has_left() {
                        self.see_out();
                        return Ok(Admission::Gone(how));
                    }
                    return Err(inner.failed(failure));
                }
            };
            if let Some(how) = self.has_left() {
                self.see_out();
                return Ok(Admission::Gone(how));
            }
            match self.read(done, &leases, sent, full).await? {
                Step::Done(admission) => {
                    let stands = inner.desk().hold_of(self.claim.id).map(|hold| hold.lease);
                    if stands != Some(leases.long.id) {
                        inner.unused(leases.long);
                    }
                    return Ok(admission);
                }
                Step::Queue => {
                    leases.short = Some(inner.leases.common(Use::Short, inner.ttl_min).await?);
                }
            }
        }
        let detail = "the cluster ends leases faster than they can be used";
        Err(Error::new(ErrorKind::Unavailable, "enter the queue", detail))
    }

    /// Whether it has left while its enter was on its way: its caller waits no more.
    fn has_left(&self) -> Option<Ended> {
        match self.inner.desk().known(self.claim.id) {
            Known::Ended(how) => Some(how),
            _ => None,
        }
    }

    fn see_out(&self) {
        let claim = ClaimRef { enter_unanswered: true, ..self.claim.to_ref() };
        crate::leave::see_out(&self.inner, claim);
    }

    /// What may have to wait although it is first, or is granted by a write of its own, stands on
    /// the short lease until then.
    fn by_write(&self) -> bool {
        matches!(self.claim.mode, Mode::Permits { .. }) || !self.claim.after_loss.is_zero()
    }

    async fn leases(&self) -> Result<Leases> {
        let inner = &self.inner;
        if self.by_write() {
            let short = inner.leases.common(Use::Short, inner.ttl_min).await?;
            return Ok(Leases { long: short, short: Some(short) });
        }
        let queues = self.claim.place != Place::No || self.claim.mode != Mode::Exclusive;
        let long = inner.lease_for(self.claim.life, self.claim.term).await?;
        let short = inner.leases.at_hand(Use::Short).filter(|_| queues);
        Ok(Leases { long, short })
    }

    /// A lease was gone: others.
    async fn anew(&self, old: &Leases) -> Result<Leases> {
        let inner = &self.inner;
        inner.leases.forget(old.long.id);
        if let Some(short) = old.short {
            inner.leases.forget(short.id);
        }
        inner.leases.disturb();
        self.leases().await
    }

    fn value(&self, granted: bool) -> Vec<u8> {
        let hold = self.hold(0, 0);
        let granted =
            granted.then(|| Granted { token: None, slots: Slots::default(), since_us: wall_us() });
        contender(&hold, self.claim.term, granted).write()
    }

    /// What is put with a key: it counts who enters, and notes that the name is used.
    fn puts(&self, value: Vec<u8>, lease: i64) -> Vec<RequestOp> {
        let counter = self.keys.beside(Beside::In);
        let used = self.inner.layout.used(&self.claim.resource);
        vec![
            txn::nested(
                vec![txn::absent(counter.clone())],
                vec![txn::put(used, vec![], 0)],
                vec![],
            ),
            txn::put(counter, stamp(), 0),
            txn::put(self.keys.claim(self.claim.id), value, lease),
        ]
    }

    async fn ask(&self, leases: &Leases, full: bool) -> Result<Done, crate::error::Failure> {
        let key = self.keys.claim(self.claim.id);
        let tomb = self.inner.layout.tomb(self.claim.id);
        let compare = vec![txn::absent(key.clone()), txn::absent(tomb.clone())];
        let free = self.puts(self.value(!self.by_write()), leases.long.id);
        let taken = match leases.short {
            Some(short) => self.puts(self.value(false), short.id),
            None => vec![],
        };
        let limit = if full { 0 } else { 1 };
        let success = vec![
            txn::nested(vec![txn::empty(self.keys.claims())], free, taken),
            txn::range(self.keys.claims(), limit),
            txn::range(self.keys.beside_all(), 0),
        ];
        txn::run(&self.rpc, compare, success, vec![txn::get(tomb)]).await
    }

    async fn read(
        &self,
        mut done: Done,
        leases: &Leases,
        sent: Moment,
        full: bool,
    ) -> Result<Step> {
        let inner = &self.inner;
        let failed = |failure| inner.failed(failure);
        if !done.succeeded {
            return self.stands_already(done).await;
        }
        let was_free = done.nested(0).map_err(failed)?;
        let claims = done.range(1).map_err(failed)?;
        let beside = done.range(2).map_err(failed)?;
        let count = claims.count;
        let mirror = Mirror::new(&self.keys, done.revision, claims.kvs, beside.kvs);
        if !was_free && leases.short.is_none() {
            if self.claim.place == Place::No {
                check_kind(&self.claim, mirror.kind(None))?;
                return Ok(Step::Done(Admission::Busy(busy(&mirror))));
            }
            return Ok(Step::Queue);
        }
        let lease = if was_free { leases.long } else { leases.short.unwrap_or(leases.long) };
        let hold = self.hold(done.revision, lease.id);
        inner.desk().insert(hold.clone());
        let refused = check_kind(&self.claim, mirror.kind(Some(self.claim.id)));
        if let Err(error) = refused.and_then(|()| self.check_room(count)) {
            crate::leave::withdraw(inner, &self.rpc, &hold).await;
            return Err(error);
        }
        if was_free {
            return self.was_free(hold, &mirror, lease, sent).await;
        }
        self.queued(hold, mirror, lease.belief, count, full).await
    }

    fn check_room(&self, count: i64) -> Result<()> {
        if count <= QUEUE_MAX {
            return Ok(());
        }
        let detail = "its queue is full";
        Err(Error::new(ErrorKind::Unavailable, "enter the queue", detail).on(&self.claim.resource))
    }

    /// Nobody else was there.
    async fn was_free(
        &self,
        hold: Hold,
        mirror: &Mirror,
        lease: Live,
        sent: Moment,
    ) -> Result<Step> {
        let (inner, claim) = (&self.inner, &self.claim);
        let now = inner.clock.now();
        if self.by_write() {
            return self.settle(&hold).await;
        }
        let Some(token) = token_of(hold.create) else { return Err(used_up()) };
        let held = Held {
            token,
            slots: Slots::default(),
            previous: mirror.previous(),
            since_us: wall_us(),
            untold: mirror.untold(),
        };
        let mut desk = inner.desk();
        let Some(hold) = desk.holds.get_mut(&hold.key) else {
            return Ok(Step::Done(Admission::Gone(Ended::Unknown)));
        };
        for part in &mut hold.parts {
            part.extend(sent, now, lease.belief);
        }
        hold.held = Some(held.clone());
        let Some(part) = hold.part(claim.id) else {
            return Ok(Step::Done(Admission::Gone(Ended::Unknown)));
        };
        Ok(Step::Done(Admission::Granted(hold.grant(part, &held))))
    }

    /// It stands in the queue; perhaps where it is admitted.
    async fn queued(
        &self,
        hold: Hold,
        mirror: Mirror,
        belief: Belief,
        count: i64,
        full: bool,
    ) -> Result<Step> {
        let inner = &self.inner;
        if !full {
            // A look at the head only: it is not ours, and the watch sees to the rest.
            let standing = crate::mirror::Standing {
                entry: match mirror.head() {
                    Some(head) => head.clone(),
                    None => return self.settle(&hold).await,
                },
                admitted: false,
                ahead: u32::try_from(count - 1).unwrap_or(0),
            };
            if !inner.settle_late(&self.claim.resource) {
                return self.settle(&hold).await;
            }
            let waiting = waiting(&hold, &standing, &mirror, LOOK_EVERY);
            return Ok(Step::Done(Admission::Waiting(waiting)));
        }
        let Some(standing) = mirror.standing(self.claim.id) else {
            return self.settle(&hold).await;
        };
        if !standing.admitted {
            if self.claim.place == Place::No {
                crate::leave::withdraw(inner, &self.rpc, &hold).await;
                return Ok(Step::Done(Admission::Busy(busy(&mirror))));
            }
            let waiting = waiting(&hold, &standing, &mirror, LOOK_EVERY);
            inner.follow(&self.claim.resource, &self.keys, mirror);
            return Ok(Step::Done(Admission::Waiting(waiting)));
        }
        let now = inner.clock.now();
        let by_write = self.claim.life == Life::Term
            || !matches!(self.claim.mode, Mode::Shared)
            || belief.end() <= now
            || !self.claim.after_loss.is_zero();
        if by_write {
            return self.settle(&hold).await;
        }
        // Admitted among others, proven by this very transaction; its first renewal moves the key.
        inner.follow(&self.claim.resource, &self.keys, mirror);
        self.settle(&hold).await
    }

    /// Sees where the claim stands now, and follows the resource if it waits.
    async fn settle(&self, hold: &Hold) -> Result<Step> {
        let inner = &self.inner;
        let granted = {
            let mut desk = inner.desk();
            desk.unpush(hold.key);
            let hold = desk.holds.get(&hold.key);
            hold.and_then(|hold| Some(hold.grant(hold.part(self.claim.id)?, hold.held.as_ref()?)))
        };
        if let Some(grant) = granted {
            return Ok(Step::Done(Admission::Granted(grant)));
        }
        let seen = look_at(inner, &self.rpc, self.claim.id).await?;
        match seen {
            Seen::Waiting(_) if self.claim.place == Place::No => {
                let mirror = look(inner, &self.rpc, &self.keys).await?;
                crate::leave::withdraw(inner, &self.rpc, hold).await;
                Ok(Step::Done(Admission::Busy(busy(&mirror))))
            }
            Seen::Waiting(waiting) => {
                let mirror = look(inner, &self.rpc, &self.keys).await?;
                inner.follow(&self.claim.resource, &self.keys, mirror);
                Ok(Step::Done(Admission::Waiting(waiting)))
            }
            other => Ok(Step::Done(admission(other))),
        }
    }

    /// Its key or its tombstone is there: an earlier enter, or its leave, has come first.
    async fn stands_already(&self, mut done: Done) -> Result<Step> {
        let inner = &self.inner;
        let tomb = done.range(0).map_err(|f| inner.failed(f))?;
        if let Some(kv) = tomb.kvs.first() {
            let (now, how) = (inner.clock.now(), crate::look::word_of(&kv.value));
            inner.desk().bury(self.claim.id, how, now, self.claim.term);
            return Ok(Step::Done(Admission::Gone(how)));
        }
        let seen = look_for(inner, &self.rpc, &self.claim.to_ref()).await?;
        if let Some(hold) = inner.desk().hold_of(self.claim.id) {
            hold.after_loss = self.claim.after_loss;
        }
        if matches!(seen, Seen::Waiting(_)) && inner.desk().hold_of(self.claim.id).is_some() {
            let mirror = look(inner, &self.rpc, &self.keys).await?;
            inner.follow(&self.claim.resource, &self.keys, mirror);
        }
        Ok(Step::Done(admission(seen)))
    }

    fn hold(&self, create: i64, lease: i64) -> Hold {
        let claim = &self.claim;
        Hold {
            key: claim.id,
            resource: claim.resource.clone(),
            keys: self.keys.clone(),
            holder: claim.holder.clone(),
            mode: claim.mode,
            create,
            lease,
            life: claim.life,
            after_loss: claim.after_loss,
            entered_us: wall_us(),
            held: None,
            parts: vec![Part::new(claim)],
            broken: false,
            confirming: false,
            leaving: false,
            ending: false,
        }
    }
}

enum Step {
    Done(Admission),
    /// It has to wait, and needs the lease for that first.
    Queue,
}
