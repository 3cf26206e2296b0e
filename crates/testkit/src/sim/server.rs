//! The server: core's `Model`, bugs around it, and a record of what it decides.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_core::model::{Entry, Grave, Handover, State, Tick};
use leasehold_core::{
    Admission, Claim, ClaimId, ClaimRef, Ended, Hint, Holder, HolderId, Left, Life, Mode, Model,
    Moment, Page, Place, Renewed, ResourceName, Result, Token,
};

use super::bugs::Bug;
use super::clock::Clock;
use crate::history::{History, What, Who};

/// What was last seen of a claim.
#[derive(Debug, Clone, Copy)]
struct Seen {
    granted: bool,
    until: Moment,
    term: Duration,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) model: Model,
    pub(super) clock: Clock,
    /// Microseconds that the wall clock shows beyond the judging clock; none without a floor.
    pub(super) wall: Option<u64>,
    bug: Option<Bug>,
    seen: BTreeMap<ResourceName, BTreeMap<ClaimId, Seen>>,
    owners: BTreeMap<ClaimId, usize>,
    /// The newest token drawn ahead of a lock, by resource.
    drawn: BTreeMap<ResourceName, Token>,
    /// Claims that a heartbeat may make again.
    places: BTreeMap<ClaimId, Claim>,
}

impl Server {
    pub(super) fn new(
        handover: Handover,
        clock: Clock,
        wall: Option<u64>,
        bug: Option<Bug>,
    ) -> Server {
        Server {
            model: Model::new(handover),
            clock,
            wall,
            bug,
            seen: BTreeMap::new(),
            owners: BTreeMap::new(),
            drawn: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }

    fn tick(&self, time: Moment) -> Tick {
        let now = self.clock.at(time);
        let floor = self.wall.map_or(0, |wall| now.as_nanos() / 1000 + wall);
        Tick { now, floor }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// A token drawn when the request arrives, before any lock: only where that is the bug.
    pub(super) fn draw(&mut self, claim: &Claim) -> Option<Token> {
        if !self.has(Bug::TokenBeforeLock) {
            return None;
        }
        let last = self.model.resources.get(&claim.resource).and_then(|r| r.last_token);
        let newest = last.max(self.drawn.get(&claim.resource).copied());
        let token = Token::next(newest, 0)?;
        self.drawn.insert(claim.resource.clone(), token);
        Some(token)
    }

    pub(super) fn enter(
        &mut self,
        time: Moment,
        client: usize,
        claim: &Claim,
        drawn: Option<Token>,
        history: &mut History,
    ) -> Result<Admission<Duration>> {
        let at = self.tick(time);
        self.owners.insert(claim.id, client);
        self.heard(time, at, &claim.resource, claim.id, history);
        let was_there = self.is_granted(&claim.resource, claim.id);
        let mut answer = self.model.enter(at, claim);
        if let (Ok(Admission::Granted(grant)), Some(token)) = (&mut answer, drawn)
            && !was_there
            && !self.reenters(&claim.resource, claim.id)
        {
            self.overwrite(&claim.resource, claim.id, token);
            grant.token = token;
        }
        if self.has(Bug::ReentryShortens) && matches!(answer, Ok(Admission::Granted(_))) {
            self.shorten(&claim.resource, claim.id);
        }
        if self.has(Bug::HeartbeatRecreates) && matches!(answer, Ok(Admission::Waiting(_))) {
            self.places.insert(claim.id, claim.clone());
        }
        self.observe(time, at, &claim.resource, history);
        answer
    }

    pub(super) fn renew(
        &mut self,
        time: Moment,
        claim: &ClaimRef,
        history: &mut History,
    ) -> Renewed<Duration> {
        let at = self.tick(time);
        self.heard(time, at, &claim.resource, claim.id, history);
        if self.has(Bug::DeadRevived)
            && let Some(entry) = self.entry(&claim.resource, claim.id)
            && let State::Granted(held) = &mut entry.state
        {
            held.until = held.until.max(at.now + claim.term);
        }
        let mut answer = self.model.renew(at, claim);
        if let (Renewed::Gone(Ended::Expired), Some(place)) = (&answer, self.places.get(&claim.id))
        {
            let place = place.clone();
            self.model.graves.remove(&claim.id);
            if let Ok(Admission::Waiting(waiting)) = self.model.enter(at, &place) {
                answer = Renewed::Waiting(waiting);
            }
        }
        self.observe(time, at, &claim.resource, history);
        answer
    }

    pub(super) fn leave(
        &mut self,
        time: Moment,
        claim: &ClaimRef,
        history: &mut History,
    ) -> Result<Left> {
        let at = self.tick(time);
        let left = if self.has(Bug::ReleaseByName) {
            self.release_by_name(at, claim)
        } else {
            self.model.leave(at, claim)
        };
        if self.has(Bug::EnterAfterLeave) {
            self.model.graves.remove(&claim.id);
        }
        // A plain leave that finds nothing bars nothing: all its enters were answered.
        if claim.enter_unanswered || matches!(left, Ok(Left::Released)) {
            let what = What::LeaveDecided { term: claim.term, judged: at.now };
            history.push(time, Who::Store, Some((&claim.resource, claim.id)), what);
        }
        self.places.remove(&claim.id);
        self.observe(time, at, &claim.resource, history);
        left
    }

    fn release_by_name(&mut self, at: Tick, claim: &ClaimRef) -> Result<Left> {
        let resource = self.model.resources.get(&claim.resource);
        let holder = resource.and_then(|r| {
            r.entries.iter().find(|e| matches!(e.state, State::Granted(_))).map(|e| e.claim.id)
        });
        let waits = resource.is_some_and(|r| r.entries.iter().any(|e| e.claim.id == claim.id));
        match holder.filter(|_| !waits) {
            Some(holder) => self.model.leave(at, &ClaimRef { id: holder, ..claim.clone() }),
            None => self.model.leave(at, claim),
        }
    }

    /// An operator breaks whatever is held.
    pub(super) fn break_(
        &mut self,
        time: Moment,
        name: &ResourceName,
        now: bool,
        history: &mut History,
    ) -> bool {
        let at = self.tick(time);
        let broken = self.model.break_(at, name, None, now);
        self.observe(time, at, name, history);
        matches!(broken, Ok(leasehold_core::Broken::Marked(_)))
    }

    /// Names that are idle are forgotten; whether there were any.
    pub(super) fn clean(&mut self, time: Moment, keep: Duration, history: &mut History) -> bool {
        let at = self.tick(time);
        let cleaned = self.model.clean(at, keep, &Page::default(), false).names;
        for name in &cleaned {
            for (id, before) in self.seen.remove(name).unwrap_or_default() {
                let how = self.model.graves.get(&id).map_or(Ended::Expired, |grave| grave.how);
                let what = What::Ended { how, remembered: at.now + before.term };
                history.push(time, Who::Store, Some((name, id)), what);
            }
        }
        !cleaned.is_empty()
    }

    /// What a start from disk loses: words not yet sent.
    pub(super) fn restart(&mut self) {
        self.model.hints.clear();
        if self.has(Bug::TokenRestarts) {
            self.model.cleaned = None;
            for resource in self.model.resources.values_mut() {
                resource.last_token = None;
            }
        }
    }

    /// The death of a client's process is seen: its claims of process life end.
    pub(super) fn see_death(&mut self, time: Moment, client: usize, history: &mut History) {
        let at = self.tick(time);
        let names: Vec<ResourceName> = self.model.resources.keys().cloned().collect();
        for name in names {
            let entries = self.model.resources.get(&name).map(|r| r.entries.as_slice());
            let of = |e: &&Entry| {
                e.claim.life == Life::Process && self.owners.get(&e.claim.id) == Some(&client)
            };
            let dead: Vec<ClaimId> =
                entries.unwrap_or_default().iter().filter(of).map(|e| e.claim.id).collect();
            for id in dead {
                // Tokens do not run out here.
                let _ = self.model.end(at, &name, id, Ended::Died);
            }
            self.observe(time, at, &name, history);
        }
    }

    /// Words for waiters, and whose they are.
    pub(super) fn take_hints(&mut self) -> Vec<(usize, ClaimId, Hint)> {
        let owners = &self.owners;
        let hints = self.model.hints.drain(..);
        hints.filter_map(|(_, id, hint)| Some((*owners.get(&id)?, id, hint))).collect()
    }

    /// At the end, when everything should have gone.
    pub(super) fn finish(&mut self, time: Moment, history: &mut History) {
        let at = self.tick(time);
        let names: Vec<ResourceName> = self.model.resources.keys().cloned().collect();
        for name in names {
            let nobody = ClaimRef {
                id: ClaimId::from_bits(0),
                resource: name.clone(),
                token: None,
                term: Duration::from_secs(1),
                life: Life::Term,
                enter_unanswered: false,
            };
            self.model.renew(at, &nobody); // settles the name as any verb does
            self.observe(time, at, &name, history);
            let left = self.model.resources.get(&name).map(|r| r.entries.as_slice());
            for entry in left.unwrap_or_default() {
                history.push(time, Who::Store, Some((&name, entry.claim.id)), What::Remains);
            }
        }
    }

    fn entry(&mut self, name: &ResourceName, id: ClaimId) -> Option<&mut Entry> {
        self.model.resources.get_mut(name)?.entries.iter_mut().find(|e| e.claim.id == id)
    }

    fn is_granted(&self, name: &ResourceName, id: ClaimId) -> bool {
        self.model.resources.get(name).is_some_and(|r| r.held(id).is_some())
    }

    fn reenters(&self, name: &ResourceName, id: ClaimId) -> bool {
        let Some(resource) = self.model.resources.get(name) else { return false };
        let index = resource.entries.iter().position(|e| e.claim.id == id);
        index.is_some_and(|i| i > 0 && resource.entries[i - 1].order == resource.entries[i].order)
    }

    fn overwrite(&mut self, name: &ResourceName, id: ClaimId, token: Token) {
        let Some(resource) = self.model.resources.get_mut(name) else { return };
        if let Some(entry) = resource.entries.iter_mut().find(|e| e.claim.id == id)
            && let State::Granted(held) = &mut entry.state
        {
            held.token = token;
        }
    }

    /// Gives the whole grant the end of its innermost claim.
    fn shorten(&mut self, name: &ResourceName, inner: ClaimId) {
        if !self.reenters(name, inner) {
            return;
        }
        let Some(resource) = self.model.resources.get_mut(name) else { return };
        let Some(entry) = resource.entries.iter().find(|e| e.claim.id == inner) else { return };
        let order = entry.order;
        let Some(until) = resource.held(inner).map(|h| h.until) else { return };
        for entry in resource.entries.iter_mut().filter(|e| e.order == order) {
            if let State::Granted(held) = &mut entry.state {
                held.until = until;
            }
        }
    }

    fn heard(
        &mut self,
        time: Moment,
        at: Tick,
        name: &ResourceName,
        id: ClaimId,
        history: &mut History,
    ) {
        let seen = self.seen.get(name).and_then(|claims| claims.get(&id));
        let Some(seen) = seen else { return };
        // What has run out is not heard any more, though nobody has looked yet.
        if !seen.granted && seen.until > at.now {
            history.push(time, Who::Store, Some((name, id)), What::Heard { judged: at.now });
        }
    }

    /// Records what has changed on a resource since it was last looked at.
    fn observe(&mut self, time: Moment, at: Tick, name: &ResourceName, history: &mut History) {
        let Some(resource) = self.model.resources.get(name) else { return };
        let seen = self.seen.entry(name.clone()).or_default();
        let graves = &self.model.graves;
        seen.retain(|id, before| {
            let there = resource.entries.iter().any(|e| e.claim.id == *id);
            if !there {
                let remembered = at.now + before.term;
                let how = graves.get(id).map_or(Ended::Released, |grave: &Grave| grave.how);
                history.push(time, Who::Store, Some((name, *id)), What::Ended { how, remembered });
            }
            there
        });
        let judged = at.now;
        for (index, entry) in resource.entries.iter().enumerate() {
            let id = entry.claim.id;
            let before = seen.get(&id).copied();
            let term = entry.claim.term;
            let (now, what) = match &entry.state {
                State::Waiting { ticket, until } => {
                    let place = match entry.claim.place {
                        Place::Term(span) => span,
                        Place::No => Duration::ZERO,
                    };
                    let new = before.is_none();
                    let what = new.then_some(What::Queued { ticket: *ticket, place, judged });
                    (Seen { granted: false, until: *until, term }, what)
                }
                State::Granted(held) => {
                    let until = held.until;
                    let what = match before {
                        Some(Seen { granted: true, until: before, .. }) if before == until => None,
                        Some(Seen { granted: true, .. }) => Some(What::Extended { until, judged }),
                        _ => Some(What::Admitted {
                            holder: entry.claim.holder.id,
                            mode: entry.claim.mode,
                            token: held.token,
                            slots: held.slots.clone(),
                            reenters: index > 0 && resource.entries[index - 1].order == entry.order,
                            until,
                            judged,
                        }),
                    };
                    (Seen { granted: true, until, term }, what)
                }
            };
            seen.insert(id, now);
            if let Some(what) = what {
                history.push(time, Who::Store, Some((name, id)), what);
            }
        }
    }
}

/// A claim on this resource, as tasks make them.
pub(super) fn claim(
    resource: &ResourceName,
    holder: HolderId,
    mode: Mode,
    term: Duration,
    life: Life,
) -> Claim {
    Claim {
        id: ClaimId::from_bits(0),
        resource: resource.clone(),
        holder: Holder::new(holder, "sim"),
        mode,
        term,
        life,
        place: Place::No,
        after_loss: Duration::ZERO,
    }
}
