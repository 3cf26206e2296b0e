//! One resource within a transaction: what holds, who is next, and the step that settles it.

use std::time::Duration;

use leasehold_core::admission::{Walk, free_slots};
use leasehold_core::{
    Busy, Claim, ClaimId, Ended, Error, ErrorKind, Kind, Life, Mode, Moment, Occupant, Previous,
    ResourceName, Slots, Ticket, Token,
};

use crate::entry::{Entry, Held, Reader, column};
use crate::error::{DOING, Step, corrupt};
use crate::live::Alive;
use crate::message::{Message, Word};
use crate::resource::ResourceRow;
use crate::tx::{Tx, WALL_MAX_US};

/// The most claims one resource holds.
pub(crate) const QUEUE_MAX: u64 = 10_000;
/// The most waiters that one step grants.
const STEP_MAX: usize = 64;
/// The first term of a grant that another's step made, so that a stopped waiter blocks others only
/// for so long; the waiter's first renewal stretches it.
pub(crate) const FIRST_TERM: Duration = Duration::from_secs(2);

/// One resource while a verb decides on it.
pub(crate) struct Desk<'d, 't> {
    pub(crate) tx: &'d mut Tx<'t>,
    pub(crate) name: &'d ResourceName,
    pub(crate) row: ResourceRow,
    /// Those that hold, in order.
    pub(crate) granted: Vec<Entry>,
    /// Which of them stands in the resource's own row.
    pub(crate) in_row: Option<ClaimId>,
    /// The first that waits, if it has been read.
    peeked: Option<Entry>,
    walk: Walk,
    /// Somebody waits and cannot be admitted now.
    pub(crate) blocked: bool,
    /// The last of those that hold has left: the first waiter has another neighbour now.
    last_left: bool,
    pub(crate) changed: bool,
}

impl<'d, 't> Desk<'d, 't> {
    pub(crate) fn open(tx: &'d mut Tx<'t>, name: &'d ResourceName) -> Step<Desk<'d, 't>> {
        let (row, holder) = match ResourceRow::load(tx.db, name)? {
            Some(found) => found,
            None => (fresh(tx)?, None),
        };
        let mut desk = Desk {
            tx,
            name,
            row,
            in_row: holder.as_ref().map(|h| h.id),
            granted: holder.into_iter().collect(),
            peeked: None,
            walk: Walk::new(),
            blocked: false,
            last_left: false,
            changed: false,
        };
        if desk.row.queued > 0 {
            desk.read_granted()?;
        }
        Ok(desk)
    }

    /// Writes back what has changed.
    pub(crate) fn close(mut self) -> Step<()> {
        if self.changed {
            let in_row = self.in_row;
            let holder = self.granted.iter().find(|e| in_row == Some(e.id));
            self.row.save(self.tx.db, self.name, holder)?;
        }
        Ok(())
    }

    /// A claim has entered or ended at this moment.
    pub(crate) fn touch(&mut self, at: Moment) {
        self.changed = true;
        let ago = self.tx.now.since(at);
        let ago_us = u64::try_from(ago.as_micros()).unwrap_or(u64::MAX);
        self.row.used_at = self.row.used_at.max(column(at.as_nanos()));
        self.row.used_us = self.row.used_us.max(self.tx.wall_us.saturating_sub(ago_us));
    }

    fn read_granted(&mut self) -> Step<()> {
        let Some(id) = self.row.id else { return Ok(()) };
        let mut select = self.tx.db.prepare_cached(include_str!("claim_after.sql"))?;
        let mut rows = select.query((id, i64::MIN, i64::MIN))?;
        while let Some(row) = rows.next()? {
            let entry = Reader::new(row, 0, self.name).entry()?;
            if entry.held.is_none() {
                self.peeked = Some(entry);
                break;
            }
            self.granted.push(entry);
        }
        Ok(())
    }

    fn has_waiters(&self) -> bool {
        let in_row = u64::from(self.in_row.is_some());
        let granted = u64::try_from(self.granted.len()).unwrap_or(u64::MAX);
        self.row.queued > granted - in_row
    }

    /// The first that waits.
    fn first_waiter(&mut self) -> Step<Option<&Entry>> {
        if self.peeked.is_none() && self.has_waiters() {
            let last = self.granted.last().map_or((i64::MIN, i64::MIN), |e| (e.order, e.sub));
            let next = self.next_after(last)?;
            let next = next.ok_or_else(|| corrupt(self.name, "claims are missing"))?;
            if next.held.is_some() {
                return Err(corrupt(self.name, "a grant stands behind a waiter"));
            }
            self.peeked = Some(next);
        }
        Ok(self.peeked.as_ref())
    }

    pub(crate) fn next_after(&self, after: (i64, i64)) -> Step<Option<Entry>> {
        self.neighbour(include_str!("claim_after.sql"), after)
    }

    fn neighbour(&self, sql: &str, from: (i64, i64)) -> Step<Option<Entry>> {
        let Some(id) = self.row.id else { return Ok(None) };
        let mut select = self.tx.db.prepare_cached(sql)?;
        let mut rows = select.query((id, from.0, from.1))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some(Reader::new(row, 0, self.name).entry()?))
    }

    /// Who stands right before this place.
    fn before(&self, place: (i64, i64)) -> Step<Option<Entry>> {
        match self.neighbour(include_str!("claim_before.sql"), place)? {
            Some(entry) => Ok(Some(entry)),
            None => Ok(self.granted.iter().rfind(|e| (e.order, e.sub) < place).cloned()),
        }
    }

    /// Who stands right before this place and is not known to be dead. Waiters found dead there are
    /// ended: nobody could be woken by their end once more.
    pub(crate) fn living_before(&mut self, place: (i64, i64)) -> Step<Option<Entry>> {
        while let Some(entry) = self.before(place)? {
            if entry.held.is_some() || self.tx.probe(&entry.home) != Alive::No {
                return Ok(Some(entry));
            }
            self.end(entry.id, Ended::Died)?;
        }
        Ok(None)
    }

    /// A live claim of this resource.
    pub(crate) fn find(&self, claim: ClaimId) -> Step<Option<Entry>> {
        if let Some(entry) = self.granted.iter().find(|e| e.id == claim) {
            return Ok(Some(entry.clone()));
        }
        let (Some(id), true) = (self.row.id, self.row.queued > 0) else { return Ok(None) };
        let mut select = self.tx.db.prepare_cached(include_str!("claim_find.sql"))?;
        let mut rows = select.query((id, claim.bits().to_be_bytes().as_slice()))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let entry = Reader::new(row, 0, self.name).entry()?;
        // A grant that was not read among those that hold has ended in this very step.
        Ok(entry.held.is_none().then_some(entry))
    }

    /// Ends what has run out, and admits those who now fit. `caller` is the claim on whose behalf
    /// this is done: it is granted its whole term, others their first term, with a word to them.
    pub(crate) fn settle(&mut self, caller: Option<ClaimId>) -> Step<()> {
        self.expire()?;
        if let Some(caller) = caller {
            self.readmit(caller)?;
        }
        let mut granted = self.admit(caller)?;
        if self.blocked && self.bury_dead_holders()? {
            granted += self.admit(caller)?;
        }
        // Whoever is granted has the same neighbours as before. Who stays first in line behind
        // others than before must look whom to watch.
        if std::mem::take(&mut self.last_left)
            && granted == 0
            && let Some(first) = self.first_waiter()?
            && caller != Some(first.id)
        {
            let word = Word::moved(first);
            self.tx.words.push(word);
        }
        Ok(())
    }

    /// Ends what has run out.
    pub(crate) fn expire(&mut self) -> Step<()> {
        let now = self.tx.now;
        let runs = |e: &Entry| e.held.as_ref().is_some_and(|h| h.until > now);
        if self.granted.iter().all(runs) {
            return Ok(());
        }
        self.last_left |= self.granted.last().is_some_and(|e| !runs(e));
        let all = std::mem::take(&mut self.granted);
        let (live, mut dead): (Vec<Entry>, Vec<Entry>) = all.into_iter().partition(runs);
        self.granted = live;
        dead.sort_by_key(|e| e.held.as_ref().map(|h| h.until));
        for entry in &dead {
            let Some(held) = &entry.held else { continue };
            self.unseat(entry)?;
            self.remember(entry, Ended::Expired, held.until);
            let told = if held.broken { Ended::Broken } else { Ended::Expired };
            self.bury(entry.id, told, now + entry.term)?;
            self.touch(held.until);
        }
        Ok(())
    }

    /// Ends grants whose processes are dead.
    pub(crate) fn bury_dead_holders(&mut self) -> Step<bool> {
        let mut any = false;
        let mut index = 0;
        while let Some(entry) = self.granted.get(index) {
            if entry.life == Life::Process && self.tx.probe(&entry.home) == Alive::No {
                self.end(entry.id, Ended::Died)?;
                any = true;
            } else {
                index += 1;
            }
        }
        Ok(any)
    }

    /// Ends one claim if its process is dead.
    pub(crate) fn bury_if_dead(&mut self, claim: ClaimId) -> Step<()> {
        if let Some(entry) = self.find(claim)?
            && (entry.held.is_none() || entry.life == Life::Process)
            && self.tx.probe(&entry.home) == Alive::No
        {
            self.end(claim, Ended::Died)?;
        }
        Ok(())
    }

    /// Ends a claim in whatever state it is; what it was, if it was there. The caller settles.
    pub(crate) fn end(&mut self, claim: ClaimId, how: Ended) -> Step<Option<Entry>> {
        let now = self.tx.now;
        let entry = match self.granted.iter().position(|e| e.id == claim) {
            Some(index) => {
                self.last_left |= index + 1 == self.granted.len();
                self.granted.remove(index)
            }
            None => match self.find(claim)? {
                Some(entry) => entry,
                None => return Ok(None),
            },
        };
        self.unseat(&entry)?;
        if self.peeked.as_ref().is_some_and(|p| p.id == claim) {
            self.peeked = None;
        }
        self.remember(&entry, how, now);
        self.bury(claim, how, now + entry.term)?;
        if how == Ended::Died {
            self.tx.dead.push(entry.home);
        }
        self.touch(now);
        Ok(Some(entry))
    }

    /// Notes how a grant ended, once its last claim has.
    fn remember(&mut self, entry: &Entry, how: Ended, at: Moment) {
        let Some(held) = &entry.held else { return };
        if !self.granted.iter().any(|e| e.order == entry.order) {
            let how = if held.broken { Ended::Broken } else { how };
            self.row.end = Some((how, at));
        }
    }

    /// Admits waiters in order while they fit; how many.
    fn admit(&mut self, caller: Option<ClaimId>) -> Step<usize> {
        self.walk = Walk::new();
        self.blocked = false;
        let mut last_order = None;
        for entry in &self.granted {
            if last_order != Some(entry.order) {
                self.walk.admits(entry.stands_as);
            }
            last_order = Some(entry.order);
        }
        let mut told = 0;
        let mut granted = 0;
        loop {
            if caller.is_none() && self.walk.is_full() {
                // None of them fits, whoever it is, and who leaves need not know.
                self.blocked = self.has_waiters();
                break;
            }
            let Some(waiter) = self.first_waiter()? else { break };
            let (id, home, mode) = (waiter.id, waiter.home, waiter.mode);
            let after_loss = waiter.after_loss;
            let is_caller = caller == Some(id);
            if !is_caller && self.tx.probe(&home) == Alive::No {
                self.end(id, Ended::Died)?;
                continue;
            }
            let mut walk = self.walk.clone();
            let fits = walk.admits(mode) && told < STEP_MAX;
            if !fits || self.held_back(after_loss) > Duration::ZERO {
                self.blocked = true; // and nobody passes it
                break;
            }
            let Some(waiter) = self.peeked.take() else { break };
            self.walk = walk;
            self.grant_waiter(waiter, is_caller)?;
            told += usize::from(!is_caller);
            granted += 1;
        }
        Ok(granted)
    }

    fn grant_waiter(&mut self, mut entry: Entry, is_caller: bool) -> Step<()> {
        let term = if is_caller { entry.term } else { entry.term.min(FIRST_TERM) };
        let held = self.new_grant(entry.mode, term)?;
        entry.held = Some(held.clone());
        if entry.is_plain_holder() && self.in_row.is_none() {
            self.unseat(&entry)?;
            self.in_row = Some(entry.id);
        } else {
            self.save_entry(&entry)?;
        }
        if !is_caller {
            let message = Message::Granted {
                claim: entry.id,
                ticket: entry.ticket,
                token: held.token,
                now: self.tx.now,
                until: held.until,
                previous: held.previous,
                slots: held.slots,
            };
            self.tx.words.push(Word { to: entry.home, message });
        }
        self.granted.push(entry);
        self.changed = true;
        Ok(())
    }

    /// A new grant, with a new token.
    fn new_grant(&mut self, mode: Mode, term: Duration) -> Step<Held> {
        let floor = if self.row.id.is_none() { self.tx.cleaned_floor()? } else { 0 };
        let token = self.tx.mint(self.row.token, floor)?;
        let slots = match mode {
            Mode::Permits { count, limit } => {
                let taken = self.granted.iter().filter_map(|e| e.held.as_ref());
                let taken = taken.flat_map(|h| h.slots.as_slice().iter().copied());
                free_slots(count, limit, taken)
                    .ok_or_else(|| corrupt(self.name, "its slots are given more than once"))?
            }
            _ => Slots::default(),
        };
        self.row.token = Some(token);
        Ok(Held {
            token,
            slots,
            until: self.tx.now + term,
            since: self.tx.now,
            previous: self.row.end.map_or(Previous::First, |(how, _)| Previous::Ended(how)),
            broken: false,
        })
    }

    /// How much longer a claim is held back because the grant before it ended uncleanly.
    pub(crate) fn held_back(&self, after_loss: Duration) -> Duration {
        match self.row.end {
            Some((how, at)) if !how.is_clean() => (at + after_loss).since(self.tx.now),
            _ => Duration::ZERO,
        }
    }

    /// Admits the caller's waiting claim if its holder has a grant that covers it.
    fn readmit(&mut self, caller: ClaimId) -> Step<()> {
        if self.granted.is_empty() || self.granted.iter().any(|e| e.id == caller) {
            return Ok(());
        }
        let Some(mut entry) = self.find(caller)? else { return Ok(()) };
        let Some(outer) = self.outer_of(&entry) else { return Ok(()) };
        self.step_into(&mut entry, outer);
        if self.peeked.as_ref().is_some_and(|p| p.id == caller) {
            self.peeked = None;
        }
        self.save_entry(&entry)?;
        self.seat_beside(entry);
        Ok(())
    }

    /// The grant that this claim re-enters.
    fn outer_of(&self, inner: &Entry) -> Option<usize> {
        self.granted.iter().position(|e| {
            e.id != inner.id
                && e.holder.id == inner.holder.id
                && e.held.as_ref().is_some_and(|h| !h.broken && has_slots(h, inner.mode))
                && e.stands_as.covers(inner.mode)
        })
    }

    /// Makes a claim one that re-enters the grant at `outer`.
    fn step_into(&self, entry: &mut Entry, outer: usize) {
        let outer = &self.granted[outer];
        let Some(held) = &outer.held else { return };
        let subs = self.granted.iter().filter(|e| e.order == outer.order).map(|e| e.sub);
        entry.order = outer.order;
        entry.sub = subs.max().unwrap_or(0).saturating_add(1);
        entry.stands_as = outer.stands_as;
        let count = match entry.mode {
            Mode::Permits { count, .. } => count as usize,
            _ => 0,
        };
        let slots = held.slots.as_slice().iter().copied().take(count).collect();
        entry.held = Some(Held {
            slots: Slots::new(slots),
            until: self.tx.now + entry.term,
            since: self.tx.now,
            ..held.clone()
        });
    }

    fn seat_beside(&mut self, entry: Entry) {
        let place = self.granted.iter().rposition(|e| e.order == entry.order);
        self.granted.insert(place.map_or(self.granted.len(), |p| p + 1), entry);
        self.changed = true;
    }

    /// Puts a new claim in: admitted if it fits, else at the end of the queue if `queue`. The
    /// entry as it then stands, or `None` where it stands nowhere.
    pub(crate) fn join(&mut self, claim: &Claim, queue: bool) -> Step<Option<Entry>> {
        let order = self.row.order.checked_add(1);
        let order = order.ok_or_else(|| corrupt(self.name, "its order numbers are used up"))?;
        let mut entry = Entry {
            id: claim.id,
            holder: claim.holder.clone(),
            order,
            sub: 0,
            mode: claim.mode,
            stands_as: claim.mode,
            entered_at: self.tx.now,
            term: claim.term,
            life: claim.life,
            after_loss: claim.after_loss,
            home: self.tx.live.home(),
            ticket: Ticket(order.cast_unsigned()),
            held: None,
        };
        if let Some(outer) = self.outer_of(&entry) {
            self.step_into(&mut entry, outer);
            self.insert_entry(&entry)?;
            self.seat_beside(entry.clone());
            self.touch(self.tx.now);
            return Ok(Some(entry));
        }
        let mut walk = self.walk.clone();
        let fits = !self.blocked && walk.admits(entry.mode);
        if fits && self.held_back(claim.after_loss) == Duration::ZERO {
            self.walk = walk;
            self.row.order = order;
            entry.held = Some(self.new_grant(entry.mode, entry.term)?);
            if entry.is_plain_holder() && self.in_row.is_none() {
                self.in_row = Some(entry.id);
            } else {
                self.insert_entry(&entry)?;
            }
            self.granted.push(entry.clone());
            self.touch(self.tx.now);
            return Ok(Some(entry));
        }
        if !queue {
            if self.granted.is_empty() {
                self.touch(self.tx.now); // it is not idle: it is held back
            }
            return Ok(None);
        }
        self.row.order = order;
        self.insert_entry(&entry)?;
        self.touch(self.tx.now);
        Ok(Some(entry))
    }

    /// Puts a changed grant in the place of what it was.
    pub(crate) fn replace(&mut self, entry: Entry) -> Step<()> {
        self.save_entry(&entry)?;
        if let Some(old) = self.granted.iter_mut().find(|e| e.id == entry.id) {
            *old = entry;
        }
        Ok(())
    }

    /// Marks grants as broken, only those with the expected token if there is one.
    pub(crate) fn mark_broken(&mut self, expect: Option<Token>) -> Step<Vec<(ClaimId, Token)>> {
        let mut marked = Vec::new();
        let mut entries = std::mem::take(&mut self.granted);
        for entry in &mut entries {
            if let Some(held) = &mut entry.held
                && expect.is_none_or(|token| token == held.token)
            {
                held.broken = true;
                marked.push((entry.id, held.token));
                self.save_entry(entry)?;
            }
        }
        self.granted = entries;
        Ok(marked)
    }

    /// The tokens of those who hold.
    pub(crate) fn held_tokens(&self) -> impl Iterator<Item = Token> {
        self.granted.iter().filter_map(|e| e.held.as_ref().map(|h| h.token))
    }

    /// Whether any claim has not ended. Changes nothing.
    pub(crate) fn has_live(&mut self) -> Step<bool> {
        let now = self.tx.now;
        let runs = |e: &Entry| e.held.as_ref().is_some_and(|h| h.until > now);
        for entry in self.granted.iter().filter(|e| runs(e)) {
            if entry.life == Life::Term || self.tx.probe(&entry.home) != Alive::No {
                return Ok(true);
            }
        }
        let mut waiter = self.first_waiter()?.cloned();
        while let Some(entry) = waiter {
            if self.tx.probe(&entry.home) != Alive::No {
                return Ok(true);
            }
            waiter = self.next_after((entry.order, entry.sub))?;
        }
        Ok(false)
    }

    /// When a claim last entered or ended, also where that was not written yet.
    pub(crate) fn last_use(&self) -> i64 {
        let ends = self.granted.iter().filter_map(|e| e.held.as_ref());
        let ends = ends.map(|h| column(h.until.min(self.tx.now).as_nanos()));
        ends.fold(self.row.used_at, i64::max)
    }

    /// How many claims live here.
    pub(crate) fn count(&self) -> u64 {
        self.row.queued + u64::from(self.in_row.is_some())
    }

    /// The kind of the live claims.
    pub(crate) fn kind(&mut self) -> Step<Option<Kind>> {
        if let Some(entry) = self.granted.first() {
            return Ok(Some(entry.mode.kind()));
        }
        Ok(self.first_waiter()?.map(|e| e.mode.kind()))
    }

    /// How many claims stand before this one.
    pub(crate) fn ahead(&self, entry: &Entry) -> Step<u32> {
        let mut count = self.tx.db.prepare_cached(include_str!("claim_ahead.sql"))?;
        let in_table: i64 = count.query_row((self.row.id, entry.order), |row| row.get(0))?;
        Ok(u32::try_from(in_table).unwrap_or(0) + u32::from(self.in_row.is_some()))
    }

    /// Who is in the way, and when that ends by itself.
    pub(crate) fn busy(&self, after_loss: Duration) -> Busy {
        let now = self.tx.now;
        let held = || self.granted.iter().filter_map(|e| e.held.as_ref().map(|h| (e, h)));
        let held_back = self.held_back(after_loss);
        let held_back = (held_back > Duration::ZERO).then_some(held_back);
        Busy {
            holder: held().next().map(|(entry, held)| Occupant {
                label: entry.holder.label().into(),
                held_for: Some(now.since(held.since)),
                token: Some(held.token),
            }),
            free_in: held().map(|(_, h)| h.until.since(now)).min().or(held_back),
        }
    }

    /// A refusal on this resource.
    pub(crate) fn refuse(&self, kind: ErrorKind, detail: impl Into<String>) -> Error {
        Error::new(kind, DOING, detail).on(self.name)
    }
}

/// An inner claim that outlives its outer one stands for all its slots, but has only its own.
fn has_slots(held: &Held, mode: Mode) -> bool {
    match mode {
        Mode::Permits { count, .. } => held.slots.as_slice().len() >= count as usize,
        Mode::Exclusive | Mode::Shared => true,
    }
}

/// The row of a name that is new, or was cleaned.
fn fresh(tx: &Tx<'_>) -> Step<ResourceRow> {
    let mut row = ResourceRow::new();
    // Orders go on where those of a cleaned row of this name were.
    row.order = column(tx.wall_us.min(WALL_MAX_US));
    let mut latest = tx.db.prepare_cached("SELECT max(until) FROM grave")?;
    let until: Option<i64> = latest.query_row([], |row| row.get(0))?;
    row.buried_until = Moment::from_nanos(until.and_then(|n| u64::try_from(n).ok()).unwrap_or(0));
    Ok(row)
}
