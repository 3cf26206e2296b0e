//! The row of a resource: its counter, its memory, and its plain exclusive holder.

use leasehold_core::{
    ClaimId, Ended, Holder, Life, Mode, Moment, Previous, ResourceName, Ticket, Token,
};
use rusqlite::{CachedStatement, Connection};

use crate::entry::{Entry, Held, Reader, column, life_word, span_column};
use crate::error::Step;

/// A row of `resource`.
#[derive(Debug, Clone)]
pub(crate) struct ResourceRow {
    /// Its number; `None` while the row is not there yet.
    pub(crate) id: Option<i64>,
    pub(crate) token: Option<Token>,
    pub(crate) order: i64,
    pub(crate) queued: u64,
    /// May lie before the boot.
    pub(crate) used_at: i64,
    pub(crate) used_us: u64,
    pub(crate) end: Option<(Ended, Moment)>,
    pub(crate) buried_until: Moment,
    pub(crate) past: Vec<u8>,
}

/// How many released claims a resource remembers.
const PAST_MAX: usize = 32;
const PAST_LEN: usize = 24;

impl ResourceRow {
    pub(crate) fn new() -> ResourceRow {
        ResourceRow {
            id: None,
            token: None,
            order: 0,
            queued: 0,
            used_at: 0,
            used_us: 0,
            end: None,
            buried_until: Moment::START,
            past: Vec::new(),
        }
    }

    /// Reads the row and the plain exclusive holder in it.
    pub(crate) fn load(
        db: &Connection,
        name: &ResourceName,
    ) -> Step<Option<(ResourceRow, Option<Entry>)>> {
        let mut load = db.prepare_cached(include_str!("resource_load.sql"))?;
        let mut rows = load.query([name.as_str()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let mut read = Reader::new(row, 0, name);
        let id = read.int()?;
        let token = match read.natural()? {
            0 => None,
            n => Some(Token::new(n).ok_or_else(|| read.bad("its token is out of range"))?),
        };
        let order = column(read.natural()?);
        let queued = read.natural()?;
        let used_at = read.int()?;
        let used_us = read.natural()?;
        let end = if read.is_null()? {
            read.skip(2);
            None
        } else {
            Some((read.ended()?, read.moment()?))
        };
        let buried_until = read.moment()?;
        let past = read.bytes()?;
        if past.len() > PAST_MAX * PAST_LEN || !past.len().is_multiple_of(PAST_LEN) {
            return Err(read.bad("its memory of released claims has an odd length"));
        }
        let past = past.to_vec();
        let holder = if read.is_null()? { None } else { Some(read_holder(&mut read, token)?) };
        let row = ResourceRow {
            id: Some(id),
            token,
            order,
            queued,
            used_at,
            used_us,
            end,
            buried_until,
            past,
        };
        Ok(Some((row, holder)))
    }

    /// Writes the row with this plain exclusive holder in it.
    pub(crate) fn save(
        &mut self,
        db: &Connection,
        name: &ResourceName,
        holder: Option<&Entry>,
    ) -> Step<()> {
        let sql = match self.id {
            Some(_) => include_str!("resource_save.sql"),
            None => include_str!("resource_insert.sql"),
        };
        let mut save = db.prepare_cached(sql)?;
        match self.id {
            Some(id) => save.raw_bind_parameter(1, id)?,
            None => save.raw_bind_parameter(1, name.as_str())?,
        }
        self.bind(&mut save)?;
        bind_holder(&mut save, holder)?;
        save.raw_execute()?;
        self.id.get_or_insert_with(|| db.last_insert_rowid());
        Ok(())
    }

    fn bind(&self, save: &mut CachedStatement<'_>) -> Step<()> {
        save.raw_bind_parameter(2, column(self.token.map_or(0, Token::get)))?;
        save.raw_bind_parameter(3, self.order)?;
        save.raw_bind_parameter(4, column(self.queued))?;
        save.raw_bind_parameter(5, self.used_at)?;
        save.raw_bind_parameter(6, column(self.used_us))?;
        save.raw_bind_parameter(7, self.end.map(|(how, _)| how.word()))?;
        save.raw_bind_parameter(8, self.end.map(|(_, at)| column(at.as_nanos())))?;
        save.raw_bind_parameter(9, column(self.buried_until.as_nanos()))?;
        save.raw_bind_parameter(10, self.past.as_slice())?;
        Ok(())
    }

    /// Remembers a released claim, and forgets what is not to be remembered any longer.
    pub(crate) fn bury_released(&mut self, claim: ClaimId, until: Moment, now: Moment) {
        let mut kept = Vec::with_capacity(self.past.len() + PAST_LEN);
        let live = self.past.chunks_exact(PAST_LEN).filter(|p| past_until(p) > now);
        let room = PAST_MAX - 1;
        let skip = live.clone().count().saturating_sub(room);
        for chunk in live.skip(skip) {
            kept.extend_from_slice(chunk);
        }
        kept.extend_from_slice(&claim.bits().to_be_bytes());
        kept.extend_from_slice(&until.as_nanos().to_be_bytes());
        self.past = kept;
    }

    /// Whether this claim was released not long ago.
    pub(crate) fn was_released(&self, claim: ClaimId, now: Moment) -> bool {
        let id = claim.bits().to_be_bytes();
        self.past.chunks_exact(PAST_LEN).any(|p| p.starts_with(&id) && past_until(p) > now)
    }

    /// The claims released last, and until when each is to be remembered.
    pub(crate) fn released(&self, now: Moment) -> Vec<(ClaimId, Moment)> {
        let all = self.past.chunks_exact(PAST_LEN).map(|p| (past_id(p), past_until(p)));
        all.filter(|(_, until)| *until > now).collect()
    }
}

fn past_id(chunk: &[u8]) -> ClaimId {
    let bits = chunk[..16].iter().fold(0_u128, |bits, &byte| bits << 8 | u128::from(byte));
    ClaimId::from_bits(bits)
}

fn past_until(chunk: &[u8]) -> Moment {
    Moment::from_nanos(chunk[16..].iter().fold(0, |nanos, &byte| nanos << 8 | u64::from(byte)))
}

fn read_holder(read: &mut Reader<'_, '_>, token: Option<Token>) -> Step<Entry> {
    let id = ClaimId::from_bits(read.id()?);
    let holder: Holder = read.holder()?;
    let order = read.int()?;
    let entered_at = read.moment()?;
    let (since, until) = (read.moment()?, read.moment()?);
    let term = read.span()?;
    let life: Life = read.life()?;
    let previous: Previous = read.previous()?;
    let broken = read.flag()?;
    let home = read.home()?;
    let token = token.ok_or_else(|| read.bad("it has a holder and no token"))?;
    Ok(Entry {
        id,
        holder,
        order,
        sub: 0,
        mode: Mode::Exclusive,
        stands_as: Mode::Exclusive,
        entered_at,
        term,
        life,
        after_loss: std::time::Duration::ZERO,
        home,
        ticket: Ticket(order.cast_unsigned()),
        held: Some(Held {
            token,
            slots: leasehold_core::Slots::default(),
            until,
            since,
            previous,
            broken,
        }),
    })
}

fn bind_holder(save: &mut CachedStatement<'_>, holder: Option<&Entry>) -> Step<()> {
    let Some((entry, held)) = holder.and_then(|e| e.held.as_ref().map(|h| (e, h))) else {
        for at in 11..=25 {
            save.raw_bind_parameter(at, rusqlite::types::Null)?;
        }
        return Ok(());
    };
    save.raw_bind_parameter(11, entry.id.bits().to_be_bytes().as_slice())?;
    save.raw_bind_parameter(12, entry.holder.id.bits().to_be_bytes().as_slice())?;
    save.raw_bind_parameter(13, entry.holder.label())?;
    save.raw_bind_parameter(14, entry.order)?;
    save.raw_bind_parameter(15, column(entry.entered_at.as_nanos()))?;
    save.raw_bind_parameter(16, column(held.since.as_nanos()))?;
    save.raw_bind_parameter(17, column(held.until.as_nanos()))?;
    save.raw_bind_parameter(18, span_column(entry.term))?;
    save.raw_bind_parameter(19, life_word(entry.life))?;
    save.raw_bind_parameter(20, held.previous.word())?;
    save.raw_bind_parameter(21, held.broken)?;
    save.raw_bind_parameter(22, entry.home.live.cast_signed())?;
    save.raw_bind_parameter(23, column(entry.home.byte))?;
    save.raw_bind_parameter(24, entry.home.pid)?;
    save.raw_bind_parameter(25, entry.home.pid_ns.cast_signed())?;
    Ok(())
}
