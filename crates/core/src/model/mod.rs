//! The executable specification of a store: what every store must answer, in memory and by one
//! clock.
//!
//! [`Model`] has no I/O, no clock and no task: the time is an argument. Its state is open, so that
//! tests can look at it and hurt it. The in-memory store is this model behind a mutex; the
//! simulation runs clients against it; other stores are compared with it, answer by answer.

mod queue;
mod resource;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::answer::{
    Admission, Broken, Cleaned, Cursor, Ended, Hint, Left, Page, Queue, Record, Renewed, Written,
};
use crate::claim::{Claim, ClaimId, ClaimRef};
use crate::error::{Error, ErrorKind, Result};
use crate::name::ResourceName;
use crate::time::Moment;
use crate::token::Token;

pub use resource::{Entry, Held, LastEnd, Resource, State, Stored};

/// The moment at which the store decides, on its own clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// The clock that judges terms.
    pub now: Moment,
    /// The floor of new tokens: the wall clock in microseconds since 1970, or 0 without one.
    pub floor: u64,
}

/// How grants are handed to waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handover {
    /// The first term of a grant that another's release made; a shorter term is granted whole.
    pub first_term: Duration,
    /// Claims with a shorter term than this are not granted by another's release, only told to
    /// look.
    pub push_min: Duration,
}

/// A store that keeps claims, as a value.
#[derive(Debug, Clone)]
pub struct Model {
    /// What stands on each resource.
    pub resources: BTreeMap<ResourceName, Resource>,
    /// Claims that have ended or were barred, until then: an enter that arrives late or twice
    /// must not bring them back.
    pub graves: BTreeMap<ClaimId, Grave>,
    /// Above every token of a name that was cleaned.
    pub cleaned: Option<Token>,
    /// Word for waiters, not yet delivered.
    pub hints: VecDeque<(ResourceName, ClaimId, Hint)>,
    /// How grants are handed to waiters.
    pub handover: Handover,
    /// Numbers orders, tickets and cursors.
    pub serial: u64,
}

/// What is remembered of a claim that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grave {
    /// How it ended.
    pub how: Ended,
    /// For how long this is remembered.
    pub until: Moment,
}

impl Model {
    /// The most claims one resource holds.
    pub const QUEUE_MAX: usize = 10_000;
    /// The most waiters that one step grants.
    pub const STEP_MAX: usize = 64;

    /// An empty store.
    pub fn new(handover: Handover) -> Model {
        Model {
            resources: BTreeMap::new(),
            graves: BTreeMap::new(),
            cleaned: None,
            hints: VecDeque::new(),
            handover,
            serial: 0,
        }
    }

    /// As [`Store::enter`](crate::Store::enter).
    ///
    /// # Errors
    ///
    /// `Usage` for another kind, an upgrade or impossible numbers; `Unavailable` for a full queue
    /// or used-up tokens. The claim is then not entered.
    pub fn enter(&mut self, at: Tick, claim: &Claim) -> Result<Admission<Duration>> {
        self.settle(at, &claim.resource, Some(claim.id))?;
        if let Some(grave) = self.graves.get(&claim.id) {
            return Ok(Admission::Gone(grave.how));
        }
        if let Some(answer) = self.entered(at, claim) {
            return Ok(answer);
        }
        self.check(claim)?;
        let order = self.next_serial();
        let resource = self.resources.entry(claim.resource.clone()).or_default();
        resource.used_at = at.now;
        resource.join(at, claim.clone(), order);
        self.settle(at, &claim.resource, Some(claim.id))?;
        let admitted = self.entered(at, claim);
        match admitted {
            Some(Admission::Waiting(_)) if claim.place == crate::Place::No => {
                Ok(Admission::Busy(self.withdraw_try(at, claim)))
            }
            Some(answer) => Ok(answer),
            None => Err(Error::new(ErrorKind::Bug, "enter the queue", "the claim is not there")),
        }
    }

    /// As one claim of [`Store::renew`](crate::Store::renew).
    pub fn renew(&mut self, at: Tick, claim: &ClaimRef) -> Renewed<Duration> {
        if let Err(error) = self.settle(at, &claim.resource, Some(claim.id)) {
            return Renewed::Unknown(error);
        }
        let Some(resource) = self.resources.get_mut(&claim.resource) else {
            return Renewed::Gone(self.grave_of(claim.id));
        };
        match resource.renew(at, claim) {
            Some(renewed) => renewed,
            None => Renewed::Gone(self.grave_of(claim.id)),
        }
    }

    /// As [`Store::leave`](crate::Store::leave).
    ///
    /// # Errors
    ///
    /// `Unavailable` if tokens for the next are used up; the claim has left all the same.
    pub fn leave(&mut self, at: Tick, claim: &ClaimRef) -> Result<Left> {
        // Nobody is admitted before it has left, least of all itself: its release would then
        // hide how the grant ended that somebody did hold.
        self.expire(at, &claim.resource);
        let ended = self.end(at, &claim.resource, claim.id, Ended::Released)?;
        if ended {
            return Ok(Left::Released);
        }
        self.settle(at, &claim.resource, None)?;
        let left = Left::Gone(self.grave_of(claim.id));
        if claim.enter_unanswered {
            // Barred for a term from now, also when it had ended some time ago.
            let until = at.now + claim.term;
            let grave = Grave { how: Ended::Released, until };
            let grave = self.graves.entry(claim.id).or_insert(grave);
            grave.until = grave.until.max(until);
        }
        Ok(left)
    }

    /// Ends a claim in whatever state it is, and hands over; whether it was there.
    ///
    /// [`Model::leave`] is this with [`Ended::Released`]; a store that sees its holder die uses
    /// [`Ended::Died`].
    ///
    /// # Errors
    ///
    /// As [`Model::leave`].
    pub fn end(
        &mut self,
        at: Tick,
        name: &ResourceName,
        claim: ClaimId,
        how: Ended,
    ) -> Result<bool> {
        let Some(resource) = self.resources.get_mut(name) else { return Ok(false) };
        let Some(entry) = resource.remove(at.now, claim, how) else { return Ok(false) };
        self.bury(claim, how, at.now + entry.claim.term);
        self.settle(at, name, None)?;
        Ok(true)
    }

    /// Ends what has run out and admits those who now fit; every verb on a resource begins so.
    ///
    /// `caller` is the claim on whose behalf this is done: it is granted its whole term, others
    /// their first term, with a word to them.
    ///
    /// # Errors
    ///
    /// `Unavailable` if tokens are used up.
    pub fn settle(&mut self, at: Tick, name: &ResourceName, caller: Option<ClaimId>) -> Result<()> {
        self.expire(at, name);
        let Some(resource) = self.resources.get_mut(name) else { return Ok(()) };
        let floor_token = self.cleaned;
        let told = resource.admit(at, caller, self.handover, floor_token)?;
        for (claim, hint) in told {
            self.serial += 1;
            let hint = hint.unwrap_or(Hint::Moved(Cursor(self.serial)));
            self.hints.push_back((name.clone(), claim, hint));
        }
        Ok(())
    }

    fn expire(&mut self, at: Tick, name: &ResourceName) {
        self.graves.retain(|_, grave| grave.until > at.now);
        let Some(resource) = self.resources.get_mut(name) else { return };
        for (entry, how) in resource.expire(at.now) {
            self.graves.insert(entry.claim.id, Grave { how, until: at.now + entry.claim.term });
        }
    }

    /// As [`Store::inspect`](crate::Store::inspect); changes nothing: what has run out and was not
    /// touched since is told as ended.
    pub fn inspect(&self, at: Tick, name: &ResourceName) -> Queue {
        let Some(resource) = self.resources.get(name) else { return Queue::default() };
        let mut seen = resource.clone();
        seen.expire(at.now);
        seen.inspect(at.now)
    }

    /// As [`Store::list`](crate::Store::list).
    pub fn list(&self, page: &Page) -> Vec<ResourceName> {
        let after = |name: &&ResourceName| page.after.as_ref().is_none_or(|a| *name > a);
        let names = self.resources.keys().filter(|n| n.as_str().starts_with(&page.prefix));
        names.filter(after).take(page.limit as usize).cloned().collect()
    }

    /// As [`Store::write`](crate::Store::write).
    ///
    /// # Errors
    ///
    /// `Usage` for a value that is too large.
    pub fn write(
        &mut self,
        at: Tick,
        claim: &ClaimRef,
        value: &[u8],
        keep: Duration,
    ) -> Result<Written> {
        if value.len() > Record::VALUE_MAX {
            let detail = alloc::format!(
                "the value has {} bytes: want at most {}",
                value.len(),
                Record::VALUE_MAX
            );
            return Err(Error::new(ErrorKind::Usage, "write a record", detail).on(&claim.resource));
        }
        self.settle(at, &claim.resource, None)?;
        let gone = Written::Gone(self.grave_of(claim.id));
        let Some(resource) = self.resources.get_mut(&claim.resource) else { return Ok(gone) };
        let Some(held) = resource.held(claim.id) else { return Ok(gone) };
        if held.broken {
            return Ok(Written::Gone(Ended::Broken));
        }
        let token = held.token;
        resource.record = Some(Stored { value: value.to_vec(), token, until: at.now + keep });
        Ok(Written::Stored)
    }

    /// As [`Store::read`](crate::Store::read).
    pub fn read(&self, at: Tick, name: &ResourceName) -> Option<Record> {
        let stored = self.resources.get(name)?.record.as_ref()?;
        (stored.until > at.now).then(|| Record {
            value: stored.value.clone(),
            token: stored.token,
            kept_for: stored.until.since(at.now),
        })
    }

    /// As [`Store::break_`](crate::Store::break_).
    ///
    /// # Errors
    ///
    /// As [`Model::leave`].
    pub fn break_(
        &mut self,
        at: Tick,
        name: &ResourceName,
        expect: Option<Token>,
        now: bool,
    ) -> Result<Broken> {
        self.settle(at, name, None)?;
        let Some(resource) = self.resources.get_mut(name) else {
            return Ok(Broken::Nothing { held: Vec::new() });
        };
        let marked = resource.mark_broken(expect);
        if marked.is_empty() {
            return Ok(Broken::Nothing { held: resource.tokens() });
        }
        if now {
            for (claim, _) in &marked {
                self.end(at, name, *claim, Ended::Broken)?;
            }
        }
        let mut tokens: Vec<Token> = marked.into_iter().map(|(_, token)| token).collect();
        tokens.dedup();
        Ok(Broken::Marked(tokens))
    }

    /// As [`Store::clean`](crate::Store::clean).
    pub fn clean(&mut self, at: Tick, keep: Duration, page: &Page, dry: bool) -> Cleaned {
        let names = self.list(page);
        let full = names.len() == page.limit as usize;
        let next = if full { names.last().cloned() } else { None };
        let idle: Vec<ResourceName> = names
            .into_iter()
            .filter(|n| self.resources.get(n).is_some_and(|r| r.is_idle(at.now, keep)))
            .collect();
        if !dry {
            for name in &idle {
                let Some(mut resource) = self.resources.remove(name) else { continue };
                // What has run out and was not looked at since stays dead.
                for (entry, how) in resource.expire(at.now) {
                    self.bury(entry.claim.id, how, at.now + entry.claim.term);
                }
                self.cleaned = self.cleaned.max(resource.last_token);
            }
        }
        Cleaned { names: idle, next }
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn bury(&mut self, claim: ClaimId, how: Ended, until: Moment) {
        self.graves.insert(claim, Grave { how, until });
    }

    fn grave_of(&self, claim: ClaimId) -> Ended {
        self.graves.get(&claim).map_or(Ended::Unknown, |grave| grave.how)
    }

    /// The state of a claim that is there already, as an answer to its enter.
    fn entered(&self, at: Tick, claim: &Claim) -> Option<Admission<Duration>> {
        let resource = self.resources.get(&claim.resource)?;
        resource.admission_of(at.now, claim.id)
    }

    fn check(&self, claim: &Claim) -> Result<()> {
        let refuse = |kind, detail: &str| {
            Err(Error::new(kind, "enter the queue", detail).on(&claim.resource))
        };
        if !claim.mode.is_valid() {
            return refuse(ErrorKind::Usage, "permits must be at least 1 and fit their limit");
        }
        let Some(resource) = self.resources.get(&claim.resource) else { return Ok(()) };
        match resource.kind() {
            Some(kind) if kind != claim.mode.kind() => {
                refuse(ErrorKind::Usage, &queue::other_kind(kind, claim.mode.kind()))
            }
            _ if resource.would_upgrade(claim) => refuse(
                ErrorKind::Usage,
                "this holder has a shared grant, and a shared grant is not upgraded",
            ),
            _ if resource.entries.len() >= Model::QUEUE_MAX => {
                refuse(ErrorKind::Unavailable, "its queue is full")
            }
            _ => Ok(()),
        }
    }

    /// Takes back a claim that was not to queue, and says who is in its way.
    fn withdraw_try(&mut self, at: Tick, claim: &Claim) -> crate::Busy {
        let Some(resource) = self.resources.get_mut(&claim.resource) else {
            return crate::Busy::default();
        };
        resource.entries.retain(|e| e.claim.id != claim.id);
        resource.busy(at.now, claim)
    }
}

#[cfg(test)]
mod tests;
