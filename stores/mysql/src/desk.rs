//! One resource within a transaction that has its row's lock: read into the specification, decided
//! there, and what has changed is written back.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_core::model::{Entry, Grave, Handover, LastEnd, Model, Resource, State, Tick};
use leasehold_core::{
    Broken, Claim, ClaimId, ClaimRef, Ended, Hint, Left, Renewed, ResourceName, Result, Token,
    Written,
};

use crate::cells::{micros, moment};
use crate::lit::{Lit, Sql};
use crate::rows::{ResourceRow, Seat};

/// The first term of a grant that another's step made: two heartbeats and some round trips. A
/// stopped waiter blocks others only for so long; the waiter's first renewal stretches it.
pub(crate) const FIRST_TERM: Duration = Duration::from_millis(2500);
/// Claims of a shorter term than this are told to look, not granted: a poll might come too late.
const PUSH_MIN: Duration = Duration::from_millis(500);

/// What a request wants of one resource.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Enter(Claim),
    Renew(ClaimRef),
    Leave(ClaimRef),
    Write { claim: ClaimRef, value: Vec<u8>, keep: Duration },
    Break { resource: ResourceName, expect: Option<Token>, now: bool },
    Clean { resource: ResourceName, keep: Duration, dry: bool },
}

impl Ask {
    pub(crate) fn resource(&self) -> &ResourceName {
        match self {
            Ask::Enter(claim) => &claim.resource,
            Ask::Renew(claim) | Ask::Leave(claim) | Ask::Write { claim, .. } => &claim.resource,
            Ask::Break { resource, .. } | Ask::Clean { resource, .. } => resource,
        }
    }

    /// The claim it is about.
    pub(crate) fn claim(&self) -> Option<ClaimId> {
        match self {
            Ask::Enter(claim) => Some(claim.id),
            Ask::Renew(claim) | Ask::Leave(claim) | Ask::Write { claim, .. } => Some(claim.id),
            Ask::Break { .. } | Ask::Clean { .. } => None,
        }
    }

    /// Whether it may leave something behind on a name that has no row yet.
    pub(crate) fn needs_row(&self) -> bool {
        match self {
            Ask::Enter(_) => true,
            Ask::Leave(claim) => claim.enter_unanswered,
            _ => false,
        }
    }
}

/// What is answered to an [`Ask`], by the server's clock.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    Entered(leasehold_core::Admission<Duration>),
    Renewed(Renewed<Duration>),
    Left(Left),
    Written(Written),
    Broken(Broken),
    /// Whether it was cleaned.
    Cleaned(bool),
}

/// What was read of a resource.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Its row; `None` where there is none, or another has it locked.
    pub(crate) row: Option<ResourceRow>,
    /// It has a row.
    pub(crate) is_there: bool,
    pub(crate) claims: Vec<Seat>,
    pub(crate) graves: Vec<(ClaimId, Ended, u64)>,
    /// Until when its record is kept.
    pub(crate) record_until: Option<u64>,
}

/// One resource while requests are decided on it.
pub(crate) struct Desk {
    pub(crate) name: ResourceName,
    now: u64,
    row: ResourceRow,
    exists: bool,
    /// The rows as they stand, with whether it is the resource's own.
    before: HashMap<ClaimId, (Seat, bool)>,
    model: Model,
    /// Barred: remembered however many are released after.
    deep: Vec<ClaimId>,
    known_graves: HashMap<ClaimId, Grave>,
    /// Rows of `leasehold_grave` that have run out.
    stale_graves: Vec<ClaimId>,
    record_until: Option<u64>,
    value: Option<(Vec<u8>, Token, u64)>,
    cleaned: bool,
}

impl Desk {
    pub(crate) fn new(name: ResourceName, now: u64, loaded: Loaded) -> Desk {
        let exists = loaded.row.is_some();
        let row = loaded.row.unwrap_or_default();
        let mut model = Model::new(Handover { first_term: FIRST_TERM, push_min: PUSH_MIN });
        model.serial = row.order;
        model.cleaned = row.floor;
        let mut before = HashMap::new();
        for seat in loaded.claims {
            before.insert(seat.entry.claim.id, (seat, false));
        }
        if let Some(seat) = row.holder.clone() {
            before.insert(seat.entry.claim.id, (seat, true));
        }
        let mut seats: Vec<&Seat> = before.values().map(|(seat, _)| seat).collect();
        seats.sort_by_key(|seat| (seat.entry.order, seat.sub));
        let entries = seats.iter().map(|seat| capped(seat, now)).collect();
        if exists {
            let last_end = row.end.map(|(how, at)| LastEnd { how, at: moment(at.min(now)) });
            let resource = Resource {
                entries,
                last_token: row.token,
                last_end,
                record: None,
                used_at: moment(row.used),
            };
            model.resources.insert(name.clone(), resource);
        }
        let mut stale_graves = Vec::new();
        let stale = loaded.graves.iter().filter(|(_, _, until)| *until <= now);
        stale_graves.extend(stale.map(|(id, _, _)| *id));
        let past = row.released().map(|(id, until)| (id, Ended::Released, until));
        for (id, how, until) in past.chain(loaded.graves).filter(|(_, _, until)| *until > now) {
            let grave = Grave { how, until: moment(until) };
            let known = model.graves.entry(id).or_insert(grave);
            if grave.until > known.until {
                *known = grave;
            }
        }
        let known_graves = model.graves.iter().map(|(id, grave)| (*id, *grave)).collect();
        Desk {
            name,
            now,
            row,
            exists,
            before,
            model,
            deep: Vec::new(),
            known_graves,
            stale_graves,
            record_until: loaded.record_until,
            value: None,
            cleaned: false,
        }
    }

    /// Whether the name has a row.
    pub(crate) fn exists(&self) -> bool {
        self.exists
    }

    fn at(&self) -> Tick {
        Tick { now: moment(self.now), floor: self.now }
    }

    /// Decides a request. An error is an answer too: what was settled before it stays settled.
    pub(crate) fn decide(&mut self, ask: &Ask) -> Result<Told> {
        let at = self.at();
        Ok(match ask {
            Ask::Enter(claim) => Told::Entered(self.model.enter(at, claim)?),
            Ask::Renew(claim) => Told::Renewed(self.model.renew(at, claim)),
            Ask::Leave(claim) => {
                if claim.enter_unanswered {
                    self.deep.push(claim.id);
                }
                Told::Left(self.model.leave(at, claim)?)
            }
            Ask::Write { claim, value, keep } => {
                let written = self.model.write(at, claim, value, *keep)?;
                let stored = self.model.resources.get_mut(&self.name).and_then(|r| r.record.take());
                if let Some(stored) = stored {
                    self.value = Some((stored.value, stored.token, micros(stored.until)));
                }
                Told::Written(written)
            }
            Ask::Break { expect, now, .. } => {
                Told::Broken(self.model.break_(at, &self.name, *expect, *now)?)
            }
            Ask::Clean { keep, dry, .. } => Told::Cleaned(self.clean(*keep, *dry)),
        })
    }

    fn clean(&mut self, keep: Duration, dry: bool) -> bool {
        let Some(resource) = self.model.resources.get(&self.name) else { return false };
        let now = moment(self.now);
        let recorded = self.record_until.is_some_and(|until| until > self.now);
        let live = resource.entries.iter().any(|e| end_of(e) > now);
        let ends = resource.entries.iter().map(end_of).fold(resource.used_at, Ord::max);
        let idle = !recorded && !live && ends + keep <= now;
        if idle && !dry {
            // What has run out and was not looked at since stays dead.
            self.model.settle(self.at(), &self.name, None).ok();
            self.cleaned = true;
        }
        idle
    }

    /// What stands there.
    pub(crate) fn inspect(&self) -> leasehold_core::Queue {
        self.model.inspect(self.at(), &self.name)
    }

    /// Words to waiters, in order.
    pub(crate) fn hints(&mut self) -> impl Iterator<Item = (ResourceName, ClaimId, Hint)> {
        self.model.hints.drain(..)
    }

    /// Who stands right before a claim.
    pub(crate) fn predecessor(&self, claim: ClaimId) -> Option<ClaimId> {
        let entries = &self.model.resources.get(&self.name)?.entries;
        let place = entries.iter().position(|e| e.claim.id == claim)?;
        Some(entries.get(place.checked_sub(1)?)?.claim.id)
    }

    /// The newest token.
    pub(crate) fn last_token(&self) -> Option<Token> {
        self.model.resources.get(&self.name).and_then(|r| r.last_token)
    }

    /// Adds what has changed to the statements of this transaction.
    pub(crate) fn write(&mut self, sql: &mut Sql) {
        if self.cleaned {
            self.write_cleaned(sql);
            return;
        }
        let buried = self.write_graves(sql);
        if let Some((value, token, until)) = self.value.take() {
            write_record(sql, &self.name, value, token, until);
        }
        let Some(resource) = self.model.resources.get(&self.name) else { return };
        if !self.exists {
            return;
        }
        let after = self.seats(&resource.entries);
        let holder = after.iter().find(|seat| seat.is_plain_holder()).map(|s| s.entry.claim.id);
        let mut new = ResourceRow {
            token: resource.last_token,
            order: self.model.serial,
            used: micros(resource.used_at),
            end: resource.last_end.map(|end| (end.how, micros(end.at))),
            buried_until: buried.0,
            past: buried.1,
            queued: 0,
            holder: None,
            floor: self.row.floor,
        };
        let kept: Vec<ClaimId> = after.iter().map(|seat| seat.entry.claim.id).collect();
        for (id, (seat, in_row)) in &self.before {
            if !in_row && (!kept.contains(id) || holder == Some(*id)) {
                delete_claim(sql, &self.name, seat);
            }
        }
        for seat in after {
            let id = seat.entry.claim.id;
            if holder == Some(id) {
                new.holder = Some(seat);
                continue;
            }
            new.queued += 1;
            match self.before.get(&id) {
                Some((old, false)) => save_claim(sql, &self.name, old, &seat),
                _ => insert_claim(sql, &self.name, &seat),
            }
        }
        save_resource(sql, &self.name, &self.row, &new);
    }

    /// The claims with their numbers and spans.
    fn seats(&self, entries: &[Entry]) -> Vec<Seat> {
        let mut seats: Vec<Seat> = Vec::with_capacity(entries.len());
        for entry in entries {
            let old = self.before.get(&entry.claim.id).map(|(seat, _)| seat);
            let sub = match old {
                Some(old) if old.entry.order == entry.order => old.sub,
                _ => {
                    let before = self.before.values().map(|(seat, _)| seat);
                    let beside = before.chain(&seats).filter(|s| s.entry.order == entry.order);
                    beside.map(|s| s.sub + 1).max().unwrap_or(0)
                }
            };
            let mut seat = Seat { entry: entry.clone(), sub, span: 0 };
            seat.span = match old {
                Some(old) if old.until() == seat.until() => old.span,
                _ => seat.until().saturating_sub(self.now),
            };
            seats.push(seat);
        }
        seats
    }

    /// Writes graves; until when the last of them lasts, and which releases the row remembers.
    fn write_graves(&mut self, sql: &mut Sql) -> (u64, Vec<u8>) {
        let mut row = self.row.clone();
        // First: a claim that is barred once more gets a new one.
        for id in self.stale_graves.drain(..) {
            let name = Lit::word(self.name.as_str());
            sql.fill(
                "DELETE FROM leasehold_grave WHERE resource = {name} AND claim = {claim};",
                &[("name", &name), ("claim", &Lit::id(id.bits()))],
            );
        }
        for (id, grave) in &self.model.graves {
            if self.known_graves.get(id) == Some(grave) {
                continue;
            }
            let until = micros(grave.until);
            if grave.how == Ended::Released && !self.deep.contains(id) {
                row.bury_released(*id, until, self.now);
                continue;
            }
            dig_grave(sql, &self.name, *id, grave.how, until);
            row.buried_until = row.buried_until.max(until);
        }
        (row.buried_until, row.past)
    }

    /// Deletes the name; what has ended lately stays dead.
    fn write_cleaned(&mut self, sql: &mut Sql) {
        for (id, grave) in &self.model.graves {
            dig_grave(sql, &self.name, *id, grave.how, micros(grave.until));
        }
        let name = Lit::word(self.name.as_str());
        for (seat, in_row) in self.before.values() {
            if !in_row {
                delete_claim(sql, &self.name, seat);
            }
        }
        // Whoever enters this name anew mints above all that it ever had.
        let floor = self.row.token.max(self.row.floor).max(self.last_token());
        sql.fill(
            include_str!("clean.sql"),
            &[("name", &name), ("token", &Lit::Num(floor.map_or(0, Token::get)))],
        );
    }
}

fn end_of(entry: &Entry) -> leasehold_core::Moment {
    match &entry.state {
        State::Granted(held) => held.until,
        State::Waiting { until, .. } => *until,
    }
}

/// The claim as it is to be judged: where more is left of it than there was when its end was set,
/// the server's clock has gone back, and its end goes back with it.
fn capped(seat: &Seat, now: u64) -> Entry {
    let mut entry = seat.entry.clone();
    let latest = moment(now.saturating_add(seat.span));
    let until = match &mut entry.state {
        State::Granted(held) => &mut held.until,
        State::Waiting { until, .. } => until,
    };
    *until = (*until).min(latest);
    entry
}

fn dig_grave(sql: &mut Sql, name: &ResourceName, claim: ClaimId, how: Ended, until: u64) {
    sql.fill(
        include_str!("grave_dig.sql"),
        &[
            ("name", &Lit::word(name.as_str())),
            ("claim", &Lit::id(claim.bits())),
            ("how", &Lit::word(how.word())),
            ("until", &Lit::Num(until)),
        ],
    );
}

fn delete_claim(sql: &mut Sql, name: &ResourceName, seat: &Seat) {
    sql.text("DELETE FROM leasehold_claim WHERE ");
    of_claim(sql, name, seat);
}

/// By the whole key, always: then no other row is looked at, let alone locked.
fn of_claim(sql: &mut Sql, name: &ResourceName, seat: &Seat) {
    sql.fill(
        "resource = {name} AND ord = {ord} AND sub = {sub};",
        &[
            ("name", &Lit::word(name.as_str())),
            ("ord", &Lit::Num(seat.entry.order)),
            ("sub", &Lit::Num(u64::from(seat.sub))),
        ],
    );
}

fn insert_claim(sql: &mut Sql, name: &ResourceName, seat: &Seat) {
    let columns = seat.columns();
    sql.text("INSERT INTO leasehold_claim (resource");
    for (column, _) in &columns {
        sql.text(", ").text(column);
    }
    let name = Lit::word(name.as_str());
    sql.text(") VALUES ").list(std::iter::once(&name).chain(columns.iter().map(|(_, lit)| lit)));
    sql.text(";");
}

fn save_claim(sql: &mut Sql, name: &ResourceName, old: &Seat, new: &Seat) {
    if (old.entry.order, old.sub) != (new.entry.order, new.sub) {
        delete_claim(sql, name, old);
        insert_claim(sql, name, new);
        return;
    }
    if assign(sql, "leasehold_claim", &old.columns(), &new.columns()) {
        sql.text(" WHERE ");
        of_claim(sql, name, new);
    }
}

fn save_resource(sql: &mut Sql, name: &ResourceName, old: &ResourceRow, new: &ResourceRow) {
    if assign(sql, "leasehold_resource", &old.columns(), &new.columns()) {
        sql.text(" WHERE name = ").bytes(name.as_str().as_bytes()).text(";");
    }
}

/// `UPDATE table SET` of the columns that differ; whether there is any.
fn assign(
    sql: &mut Sql,
    table: &str,
    old: &[(&'static str, Lit)],
    new: &[(&'static str, Lit)],
) -> bool {
    let mut any = false;
    for ((column, old), (_, new)) in old.iter().zip(new) {
        if old == new {
            continue;
        }
        if any {
            sql.text(", ");
        } else {
            sql.text("UPDATE ").text(table).text(" SET ");
        }
        any = true;
        sql.text(column).text(" = ").lit(new);
    }
    any
}

fn write_record(sql: &mut Sql, name: &ResourceName, value: Vec<u8>, token: Token, until: u64) {
    sql.fill(
        include_str!("write.sql"),
        &[
            ("name", &Lit::word(name.as_str())),
            ("value", &Lit::Bytes(value)),
            ("token", &Lit::Num(token.get())),
            ("until", &Lit::Num(until)),
        ],
    );
}
