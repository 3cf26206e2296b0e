//! The rows of claims: written, taken out, and remembered when they have ended.

use leasehold_core::{ClaimId, Ended, Moment, Token};

use crate::desk::Desk;
use crate::entry::{
    Entry, Held, Reader, column, life_word, mode_columns, slots_column, span_column,
};
use crate::error::{Fail, Step, corrupt};
use crate::live::Home;

impl Desk<'_, '_> {
    /// Takes the row of a claim out.
    pub(crate) fn unseat(&mut self, entry: &Entry) -> Step<()> {
        self.changed = true;
        if self.in_row == Some(entry.id) {
            self.in_row = None;
            return Ok(());
        }
        let mut delete = self.tx.db.prepare_cached(include_str!("claim_delete.sql"))?;
        delete.execute((self.row.id, entry.id.bits().to_be_bytes().as_slice()))?;
        self.row.queued = self.row.queued.saturating_sub(1);
        Ok(())
    }

    /// Writes what can change of a claim's row.
    pub(crate) fn save_entry(&mut self, entry: &Entry) -> Step<()> {
        self.changed = true;
        if self.in_row == Some(entry.id) {
            return Ok(());
        }
        let mut save = self.tx.db.prepare_cached(include_str!("claim_save.sql"))?;
        save.raw_bind_parameter(1, self.row.id)?;
        save.raw_bind_parameter(2, entry.id.bits().to_be_bytes().as_slice())?;
        save.raw_bind_parameter(3, entry.order)?;
        save.raw_bind_parameter(4, entry.sub)?;
        let (stands, stands_count, _) = mode_columns(entry.stands_as);
        save.raw_bind_parameter(5, stands)?;
        save.raw_bind_parameter(6, stands_count)?;
        save.raw_bind_parameter(7, span_column(entry.term))?;
        save.raw_bind_parameter(8, life_word(entry.life))?;
        bind_home(&mut save, 9, &entry.home)?;
        bind_held(&mut save, 13, entry.held.as_ref())?;
        if save.raw_execute()? != 1 {
            return Err(corrupt(self.name, "a claim's row went missing"));
        }
        Ok(())
    }

    pub(crate) fn insert_entry(&mut self, entry: &Entry) -> Step<()> {
        if self.row.id.is_none() {
            self.row.save(self.tx.db, self.name, None)?;
        }
        self.changed = true;
        self.row.queued += 1;
        let mut insert = self.tx.db.prepare_cached(include_str!("claim_insert.sql"))?;
        insert.raw_bind_parameter(1, self.row.id)?;
        insert.raw_bind_parameter(2, entry.order)?;
        insert.raw_bind_parameter(3, entry.sub)?;
        insert.raw_bind_parameter(4, entry.id.bits().to_be_bytes().as_slice())?;
        insert.raw_bind_parameter(5, entry.holder.id.bits().to_be_bytes().as_slice())?;
        insert.raw_bind_parameter(6, entry.holder.label())?;
        let (mode, count, limit) = mode_columns(entry.mode);
        insert.raw_bind_parameter(7, mode)?;
        insert.raw_bind_parameter(8, count)?;
        insert.raw_bind_parameter(9, limit)?;
        let (stands, stands_count, _) = mode_columns(entry.stands_as);
        insert.raw_bind_parameter(10, stands)?;
        insert.raw_bind_parameter(11, stands_count)?;
        insert.raw_bind_parameter(12, column(entry.entered_at.as_nanos()))?;
        insert.raw_bind_parameter(13, span_column(entry.term))?;
        insert.raw_bind_parameter(14, life_word(entry.life))?;
        insert.raw_bind_parameter(15, span_column(entry.after_loss))?;
        bind_home(&mut insert, 16, &entry.home)?;
        insert.raw_bind_parameter(20, column(entry.ticket.0))?;
        bind_held(&mut insert, 21, entry.held.as_ref())?;
        insert.raw_execute()?;
        Ok(())
    }

    /// Remembers an ended or barred claim.
    pub(crate) fn bury(&mut self, claim: ClaimId, how: Ended, until: Moment) -> Step<()> {
        if how == Ended::Released {
            self.row.bury_released(claim, until, self.tx.now);
            return Ok(());
        }
        self.bury_deep(claim, how, until)
    }

    /// Remembers it however many follow.
    pub(crate) fn bury_deep(&mut self, claim: ClaimId, how: Ended, until: Moment) -> Step<()> {
        // A name without a row looks at all graves once it gets one.
        self.changed |= self.row.id.is_some();
        let now = column(self.tx.now.as_nanos());
        self.tx.db.prepare_cached(include_str!("grave_prune.sql"))?.execute([now])?;
        let mut dig = self.tx.db.prepare_cached(include_str!("grave_dig.sql"))?;
        let id = claim.bits().to_be_bytes();
        dig.execute((id.as_slice(), how.word(), column(until.as_nanos())))?;
        self.row.buried_until = self.row.buried_until.max(until);
        Ok(())
    }

    /// How a claim ended that is not there any more, if that is remembered.
    pub(crate) fn grave(&self, claim: ClaimId) -> Step<Option<Ended>> {
        let now = self.tx.now;
        if self.row.was_released(claim, now) {
            return Ok(Some(Ended::Released));
        }
        if self.row.buried_until <= now {
            return Ok(None);
        }
        let mut find = self.tx.db.prepare_cached(include_str!("grave_find.sql"))?;
        let id = claim.bits().to_be_bytes();
        let mut rows = find.query((id.as_slice(), column(now.as_nanos())))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        Ok(Some(Reader::new(row, 0, self.name).ended()?))
    }

    /// As [`Desk::grave`], in the words of an answer.
    pub(crate) fn gone(&self, claim: ClaimId) -> Step<Ended> {
        Ok(self.grave(claim)?.unwrap_or(Ended::Unknown))
    }
}

fn bind_home(to: &mut rusqlite::CachedStatement<'_>, at: usize, home: &Home) -> Result<(), Fail> {
    to.raw_bind_parameter(at, home.live.cast_signed())?;
    to.raw_bind_parameter(at + 1, column(home.byte))?;
    to.raw_bind_parameter(at + 2, home.pid)?;
    to.raw_bind_parameter(at + 3, home.pid_ns.cast_signed())?;
    Ok(())
}

fn bind_held(
    to: &mut rusqlite::CachedStatement<'_>,
    at: usize,
    held: Option<&Held>,
) -> Result<(), Fail> {
    let Some(held) = held else {
        for column in at..at + 5 {
            to.raw_bind_parameter(column, rusqlite::types::Null)?;
        }
        to.raw_bind_parameter(at + 5, false)?;
        return Ok(());
    };
    to.raw_bind_parameter(at, column(Token::get(held.token)))?;
    to.raw_bind_parameter(at + 1, slots_column(&held.slots))?;
    to.raw_bind_parameter(at + 2, column(held.until.as_nanos()))?;
    to.raw_bind_parameter(at + 3, column(held.since.as_nanos()))?;
    to.raw_bind_parameter(at + 4, held.previous.word())?;
    to.raw_bind_parameter(at + 5, held.broken)?;
    Ok(())
}
