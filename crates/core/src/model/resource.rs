//! One resource of the model: its queue, its counter and its memory.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Handover, Model, Tick};
use crate::admission::{Walk, free_slots};
use crate::answer::{
    Admission, Busy, Ended, Grant, Hint, Occupant, Previous, Pushed, PushedEnd, Queue, QueueEntry,
    QueueState, Renewed, Slots, Waiting,
};
use crate::claim::{Claim, ClaimId, ClaimRef, Kind, Mode, Place, Ticket};
use crate::error::{Error, ErrorKind, Result};
use crate::time::Moment;
use crate::token::Token;

/// A resource: its live claims in order, and what is remembered beside them.
#[derive(Debug, Clone, Default)]
pub struct Resource {
    /// Live claims by order; those that re-enter stand right after the grant they re-enter.
    pub entries: Vec<Entry>,
    /// The newest token.
    pub last_token: Option<Token>,
    /// How the last grant to end has ended.
    pub last_end: Option<LastEnd>,
    /// The record kept with it.
    pub record: Option<Stored>,
    /// When a claim last entered or ended.
    pub used_at: Moment,
}

/// How and when the last grant has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastEnd {
    /// How.
    pub how: Ended,
    /// When.
    pub at: Moment,
}

/// A record as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What was written.
    pub value: Vec<u8>,
    /// Under which grant.
    pub token: Token,
    /// Until when it is kept.
    pub until: Moment,
}

/// A live claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The claim as it was entered; its term and life as last renewed.
    pub claim: Claim,
    /// Its order; one that re-enters has that of the grant it re-entered.
    pub order: u64,
    /// The mode by which it stands in others' way: that of the grant it re-entered, or its own.
    pub stands_as: Mode,
    /// When it entered.
    pub entered_at: Moment,
    /// Whether it waits or holds.
    pub state: State,
}

/// Whether a claim waits or holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It waits.
    Waiting {
        /// Its ticket.
        ticket: Ticket,
        /// When its place ends.
        until: Moment,
    },
    /// It holds.
    Granted(Held),
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its token.
    pub token: Token,
    /// Its slots.
    pub slots: Slots,
    /// When its term ends.
    pub until: Moment,
    /// When it was admitted.
    pub since: Moment,
    /// How the grant before it ended.
    pub previous: Previous,
    /// An operator broke it.
    pub broken: bool,
}

impl Entry {
    fn held(&self) -> Option<&Held> {
        match &self.state {
            State::Granted(held) => Some(held),
            State::Waiting { .. } => None,
        }
    }

    /// When its term or its place ends.
    pub(super) fn until(&self) -> Moment {
        match &self.state {
            State::Granted(held) => held.until,
            State::Waiting { until, .. } => *until,
        }
    }

    fn place_end(&self, now: Moment) -> Moment {
        match self.claim.place {
            Place::Term(term) => now + term,
            Place::No => Moment::NEVER,
        }
    }
}

impl Resource {
    /// The kind of the live claims.
    pub fn kind(&self) -> Option<Kind> {
        self.entries.first().map(|e| e.claim.mode.kind())
    }

    /// The grant of this claim.
    pub fn held(&self, claim: ClaimId) -> Option<&Held> {
        self.entries.iter().find(|e| e.claim.id == claim)?.held()
    }

    /// The tokens of all grants, without repeats.
    pub(super) fn tokens(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> =
            self.entries.iter().filter_map(|e| e.held().map(|h| h.token)).collect();
        tokens.dedup();
        tokens
    }

    pub(super) fn is_idle(&self, now: Moment, keep: Duration) -> bool {
        let recorded = self.record.as_ref().is_some_and(|r| r.until > now);
        let live = self.entries.iter().any(|e| e.until() > now);
        !recorded && !live && self.used_at + keep <= now
    }

    /// A holder of a shared grant that claims exclusively would wait for itself.
    pub(super) fn would_upgrade(&self, claim: &Claim) -> bool {
        claim.mode == Mode::Exclusive
            && self.entries.iter().any(|e| {
                e.claim.holder.id == claim.holder.id
                    && e.held().is_some()
                    && e.stands_as == Mode::Shared
            })
    }

    /// Puts a new claim at the end of the queue.
    pub(super) fn join(&mut self, at: Tick, claim: Claim, order: u64) {
        let mut entry = Entry {
            order,
            stands_as: claim.mode,
            entered_at: at.now,
            state: State::Waiting { ticket: Ticket(order), until: Moment::NEVER },
            claim,
        };
        entry.state = State::Waiting { ticket: Ticket(order), until: entry.place_end(at.now) };
        self.entries.push(entry);
    }

    /// Takes a claim out.
    pub(super) fn remove(&mut self, now: Moment, claim: ClaimId, how: Ended) -> Option<Entry> {
        let index = self.entries.iter().position(|e| e.claim.id == claim)?;
        let entry = self.entries.remove(index);
        self.remember(&entry, how, now);
        self.used_at = now;
        Some(entry)
    }

    /// Notes how a grant ended, once its last claim has.
    fn remember(&mut self, entry: &Entry, how: Ended, at: Moment) {
        let Some(held) = entry.held() else { return };
        let still = self.entries.iter().any(|e| e.order == entry.order && e.held().is_some());
        if !still {
            let how = if held.broken { Ended::Broken } else { how };
            self.last_end = Some(LastEnd { how, at });
        }
    }

    /// Takes out what has run out, and says how each ended.
    pub(super) fn expire(&mut self, now: Moment) -> Vec<(Entry, Ended)> {
        let (live, dead): (Vec<Entry>, Vec<Entry>) =
            core::mem::take(&mut self.entries).into_iter().partition(|e| e.until() > now);
        self.entries = live;
        let mut dead: Vec<Entry> = dead;
        dead.sort_by_key(Entry::until);
        for entry in &dead {
            self.remember(entry, Ended::Expired, entry.until());
            self.used_at = self.used_at.max(entry.until());
        }
        let told = |entry: Entry| match entry.held() {
            Some(held) if held.broken => (entry, Ended::Broken),
            _ => (entry, Ended::Expired),
        };
        dead.into_iter().map(told).collect()
    }

    /// Admits all waiting claims that now fit, and says whom to tell what: a grant, or to look.
    pub(super) fn admit(
        &mut self,
        at: Tick,
        caller: Option<ClaimId>,
        handover: Handover,
        cleaned: Option<Token>,
    ) -> Result<Vec<(ClaimId, Option<Hint>)>> {
        self.admit_reentries(at, caller);
        let mut told = Vec::new();
        let mut walk = Walk::new();
        let mut last_order = None;
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if last_order == Some(entry.order) {
                continue; // it stands where the grant stands that it re-entered
            }
            last_order = Some(entry.order);
            let fits = walk.admits(entry.stands_as);
            if entry.held().is_some() {
                continue;
            }
            let is_caller = caller == Some(entry.claim.id);
            if !fits || told.len() >= Model::STEP_MAX {
                break;
            }
            if self.held_back(at.now, &entry.claim) > Duration::ZERO {
                break; // and nobody passes it
            }
            if !is_caller && entry.claim.term < handover.push_min {
                told.push((entry.claim.id, None));
                break;
            }
            let hint = self.grant(at, index, is_caller, handover, cleaned)?;
            if let Some(hint) = hint {
                told.push((self.entries[index].claim.id, Some(hint)));
            }
        }
        Ok(told)
    }

    /// Admits waiting claims whose holder has a grant that covers them, wherever they stand.
    fn admit_reentries(&mut self, at: Tick, caller: Option<ClaimId>) {
        let mut index = 0;
        while index < self.entries.len() {
            let entry = &self.entries[index];
            let outer = self.outer_of(entry);
            let granted = match (outer, entry.held()) {
                // A grant is passed to the caller only: another looks by itself.
                (Some(outer), None) if caller == Some(entry.claim.id) => {
                    Some(self.reenter(at, index, outer))
                }
                _ => None,
            };
            index += 1;
            if let Some(entry) = granted {
                self.entries.remove(index - 1);
                let place = self.entries.iter().rposition(|e| e.order == entry.order);
                self.entries.insert(place.map_or(index - 1, |p| p + 1), entry);
            }
        }
    }

    fn outer_of(&self, inner: &Entry) -> Option<usize> {
        self.entries.iter().position(|e| {
            e.claim.id != inner.claim.id
                && e.claim.holder.id == inner.claim.holder.id
                && e.held().is_some_and(|h| !h.broken && has_slots(h, inner.claim.mode))
                && e.stands_as.covers(inner.claim.mode)
        })
    }

    /// The entry at `index` as one that re-enters the grant at `outer`.
    fn reenter(&self, at: Tick, index: usize, outer: usize) -> Entry {
        let mut entry = self.entries[index].clone();
        let outer = &self.entries[outer];
        entry.order = outer.order;
        entry.stands_as = outer.stands_as;
        if let Some(held) = outer.held() {
            let count = match entry.claim.mode {
                Mode::Permits { count, .. } => count as usize,
                _ => 0,
            };
            let slots = held.slots.as_slice().iter().copied().take(count).collect();
            entry.state = State::Granted(Held {
                slots: Slots::new(slots),
                until: at.now + entry.claim.term,
                since: at.now,
                ..held.clone()
            });
        }
        entry
    }

    /// How much longer a claim is held back because the grant before it ended uncleanly.
    fn held_back(&self, now: Moment, claim: &Claim) -> Duration {
        match self.last_end {
            Some(end) if !end.how.is_clean() => (end.at + claim.after_loss).since(now),
            _ => Duration::ZERO,
        }
    }

    fn grant(
        &mut self,
        at: Tick,
        index: usize,
        is_caller: bool,
        handover: Handover,
        cleaned: Option<Token>,
    ) -> Result<Option<Hint>> {
        let last = self.last_token.max(cleaned);
        let used_up = || Error::new(ErrorKind::Unavailable, "grant a claim", "tokens are used up");
        let token = Token::next(last, at.floor).ok_or_else(used_up)?;
        let slots = self.slots_for(self.entries[index].claim.mode);
        let previous = self.last_end.map_or(Previous::First, |end| Previous::Ended(end.how));
        let entry = &mut self.entries[index];
        let State::Waiting { ticket, .. } = entry.state else { return Ok(None) };
        let term = entry.claim.term;
        let term = if is_caller { term } else { term.min(handover.first_term) };
        let held = Held {
            token,
            slots: slots.clone(),
            until: at.now + term,
            since: at.now,
            previous,
            broken: false,
        };
        entry.state = State::Granted(held);
        self.last_token = Some(token);
        let until = PushedEnd::FirstTerm(term);
        let grant = Grant { claim: entry.claim.id, token, until, slots, previous };
        Ok((!is_caller).then_some(Hint::Granted(Pushed { grant, ticket })))
    }

    fn slots_for(&self, mode: Mode) -> Slots {
        let Mode::Permits { count, limit } = mode else { return Slots::default() };
        let taken = self.entries.iter().filter_map(Entry::held);
        let taken = taken.flat_map(|h| h.slots.as_slice().iter().copied());
        free_slots(count, limit, taken).unwrap_or_default()
    }

    /// The state of a claim as an answer to its enter.
    pub(super) fn admission_of(&self, now: Moment, id: ClaimId) -> Option<Admission<Duration>> {
        let entry = self.entries.iter().find(|e| e.claim.id == id)?;
        Some(match &entry.state {
            State::Granted(held) if held.broken => Admission::Gone(Ended::Broken),
            State::Granted(held) => Admission::Granted(granted(now, id, held)),
            State::Waiting { ticket, .. } => Admission::Waiting(self.waiting(now, entry, *ticket)),
        })
    }

    pub(super) fn renew(&mut self, at: Tick, claim: &ClaimRef) -> Option<Renewed<Duration>> {
        let index = self.entries.iter().position(|e| e.claim.id == claim.id)?;
        let entry = &mut self.entries[index];
        if let (Some(named), State::Granted(held)) = (claim.token, &entry.state)
            && named != held.token
        {
            return None;
        }
        entry.claim.term = claim.term;
        entry.claim.life = claim.life;
        let place_end = entry.place_end(at.now);
        match &mut entry.state {
            State::Granted(held) if held.broken => Some(Renewed::Gone(Ended::Broken)),
            State::Granted(held) => {
                held.until = held.until.max(at.now + claim.term);
                Some(match claim.token {
                    Some(_) => Renewed::Alive { until: held.until.since(at.now) },
                    None => Renewed::Granted(granted(at.now, claim.id, held)),
                })
            }
            State::Waiting { until, ticket } => {
                *until = place_end;
                let ticket = *ticket;
                Some(Renewed::Waiting(self.waiting(at.now, &self.entries[index], ticket)))
            }
        }
    }

    fn waiting(&self, now: Moment, entry: &Entry, ticket: Ticket) -> Waiting {
        let ahead = self.entries.iter().filter(|e| e.order < entry.order).count();
        let busy = self.busy(now, &entry.claim);
        Waiting {
            ticket,
            ahead: u32::try_from(ahead).ok(),
            recheck_in: busy.free_in.unwrap_or(Duration::from_secs(1)),
            holder: busy.holder,
        }
    }

    /// Who is in the way, and when that ends by itself.
    pub(super) fn busy(&self, now: Moment, claim: &Claim) -> Busy {
        let holders = || self.entries.iter().filter_map(|e| e.held().map(|h| (e, h)));
        let first = holders().next();
        let ends = holders().map(|(_, h)| h.until.since(now)).min();
        let held_back = self.held_back(now, claim);
        let held_back = (held_back > Duration::ZERO).then_some(held_back);
        Busy {
            holder: first.map(|(e, h)| Occupant {
                label: e.claim.holder.label().into(),
                held_for: Some(now.since(h.since)),
                token: Some(h.token),
            }),
            free_in: ends.or(held_back),
        }
    }

    /// Marks grants as broken, only those with the expected token if there is one.
    pub(super) fn mark_broken(&mut self, expect: Option<Token>) -> Vec<(ClaimId, Token)> {
        let mut marked = Vec::new();
        for entry in &mut self.entries {
            if let State::Granted(held) = &mut entry.state
                && expect.is_none_or(|token| token == held.token)
            {
                held.broken = true;
                marked.push((entry.claim.id, held.token));
            }
        }
        marked
    }

    pub(super) fn inspect(&self, now: Moment) -> Queue {
        let live = self.entries.iter().filter(|e| e.until() > now);
        let (held, waiting): (Vec<&Entry>, Vec<&Entry>) = live.partition(|e| e.held().is_some());
        let entry = |e: &Entry| QueueEntry {
            claim: e.claim.id,
            holder: e.claim.holder.clone(),
            mode: e.claim.mode,
            life: e.claim.life,
            entered_ago: now.since(e.entered_at),
            state: match &e.state {
                State::Waiting { ticket, .. } => QueueState::Waiting { ticket: *ticket },
                State::Granted(held) => QueueState::Granted {
                    token: held.token,
                    slots: held.slots.clone(),
                    held_for: now.since(held.since),
                    left: held.until.since(now),
                    broken: held.broken,
                },
            },
        };
        Queue {
            kind: self.kind(),
            entries: held.into_iter().chain(waiting).map(entry).collect(),
            last_token: self.last_token,
            last_end: self.last_end.map(|end| end.how),
            last_end_ago: self.last_end.map(|end| now.since(end.at)),
        }
    }
}

/// An inner claim that outlives its outer one stands for all its slots, but has only its own.
fn has_slots(held: &Held, mode: Mode) -> bool {
    match mode {
        Mode::Permits { count, .. } => held.slots.as_slice().len() >= count as usize,
        Mode::Exclusive | Mode::Shared => true,
    }
}

fn granted(now: Moment, claim: ClaimId, held: &Held) -> Grant<Duration> {
    Grant {
        claim,
        token: held.token,
        until: held.until.since(now),
        slots: held.slots.clone(),
        previous: held.previous,
    }
}
