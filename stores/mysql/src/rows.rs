//! The rows of a resource and of its claims: read, and told as columns.

use std::time::Duration;

use leasehold_core::model::{Entry, Held, State};
use leasehold_core::{
    Claim, ClaimId, Ended, Mode, Place, Previous, ResourceName, Result, Slots, Ticket, Token,
};
use mysql_async::Row;

use crate::cells::{Cells, life_word, micros, mode_columns, moment, slots_column, span_micros};
use crate::lit::Lit;

/// The columns of `leasehold_resource`, as [`ResourceRow::read`] wants them.
pub(crate) const RESOURCE_COLUMNS: &str = "name, token, token_floor, ord, queued, used, end_how, \
    end_at, buried_until, past, h_claim, h_holder, h_label, h_ord, h_entered, h_since, h_term, \
    h_life, h_previous, h_broken, h_span, h_until";

/// The columns of `leasehold_claim`, as [`read_claim`] wants them.
pub(crate) const CLAIM_COLUMNS: &str = "resource, ord, sub, claim, holder, label, mode, count, \
    slot_limit, stands, stands_count, entered, term, life, place, after_loss, token, slots, since, \
    previous, broken, span, until";

/// A claim and the row that it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) entry: Entry,
    pub(crate) sub: u32,
    /// How long its end was ahead, in microseconds, when it was set.
    pub(crate) span: u64,
}

impl Seat {
    pub(crate) fn until(&self) -> u64 {
        micros(match &self.entry.state {
            State::Waiting { until, .. } => *until,
            State::Granted(held) => held.until,
        })
    }

    pub(crate) fn held(&self) -> Option<&Held> {
        match &self.entry.state {
            State::Granted(held) => Some(held),
            State::Waiting { .. } => None,
        }
    }

    /// Whether it may stand in the resource's own row.
    pub(crate) fn is_plain_holder(&self) -> bool {
        let entry = &self.entry;
        self.sub == 0
            && self.held().is_some()
            && entry.claim.mode == Mode::Exclusive
            && entry.stands_as == Mode::Exclusive
    }

    /// The columns of its row in `leasehold_claim`, but for `resource`.
    pub(crate) fn columns(&self) -> Vec<(&'static str, Lit)> {
        let Entry { claim, order, stands_as, entered_at, .. } = &self.entry;
        let (mode, count, limit) = mode_columns(claim.mode);
        let (stands, stands_count, _) = mode_columns(*stands_as);
        let place = match claim.place {
            Place::Term(term) => span_micros(term),
            Place::No => 0,
        };
        let held = self.held();
        vec![
            ("ord", Lit::Num(*order)),
            ("sub", Lit::Num(u64::from(self.sub))),
            ("claim", Lit::id(claim.id.bits())),
            ("holder", Lit::id(claim.holder.id.bits())),
            ("label", Lit::word(claim.holder.label())),
            ("mode", Lit::word(mode)),
            ("count", Lit::Num(u64::from(count))),
            ("slot_limit", Lit::Num(u64::from(limit))),
            ("stands", Lit::word(stands)),
            ("stands_count", Lit::Num(u64::from(stands_count))),
            ("entered", Lit::Num(micros(*entered_at))),
            ("term", Lit::Num(span_micros(claim.term))),
            ("life", Lit::word(life_word(claim.life))),
            ("place", Lit::Num(place)),
            ("after_loss", Lit::Num(span_micros(claim.after_loss))),
            ("token", Lit::or_null(held.map(|h| Lit::Num(h.token.get())))),
            ("slots", Lit::or_null(held.and_then(|h| slots_column(&h.slots)).map(Lit::Bytes))),
            ("since", Lit::or_null(held.map(|h| Lit::Num(micros(h.since))))),
            ("previous", Lit::or_null(held.map(|h| Lit::word(h.previous.word())))),
            ("broken", Lit::flag(held.is_some_and(|h| h.broken))),
            ("span", Lit::Num(self.span)),
            ("until", Lit::Num(self.until())),
        ]
    }
}

/// A row of `leasehold_resource`.
#[derive(Debug, Clone, Default)]
pub(crate) struct ResourceRow {
    pub(crate) token: Option<Token>,
    /// Every token to come is above.
    pub(crate) floor: Option<Token>,
    pub(crate) order: u64,
    pub(crate) queued: u64,
    pub(crate) used: u64,
    pub(crate) end: Option<(Ended, u64)>,
    pub(crate) buried_until: u64,
    pub(crate) past: Vec<u8>,
    /// The plain exclusive holder.
    pub(crate) holder: Option<Seat>,
}

impl ResourceRow {
    pub(crate) fn read(row: Row) -> Result<(ResourceName, ResourceRow)> {
        let mut cells = Cells::new(row);
        let name = cells.name()?;
        let token = cells.maybe_token()?;
        let floor = cells.maybe_token()?;
        let (order, queued, used) = (cells.num()?, cells.num()?, cells.num()?);
        let end = match (cells.maybe_ended()?, cells.maybe_num()?) {
            (Some(how), Some(at)) => Some((how, at)),
            (None, None) => None,
            _ => return Err(cells.bad("how its last grant ended is half there")),
        };
        let buried_until = cells.num()?;
        let past = cells.bytes()?;
        if past.len() > PAST_MAX * PAST_LEN || !past.len().is_multiple_of(PAST_LEN) {
            return Err(cells.bad("its memory of released claims has an odd length"));
        }
        let holder = match cells.maybe_id()? {
            None => None,
            Some(id) => Some(read_holder(&mut cells, &name, ClaimId::from_bits(id), token)?),
        };
        let row =
            ResourceRow { token, floor, order, queued, used, end, buried_until, past, holder };
        Ok((name, row))
    }

    /// The columns, but for the name.
    pub(crate) fn columns(&self) -> Vec<(&'static str, Lit)> {
        let mut columns = vec![
            ("token", Lit::Num(self.token.map_or(0, Token::get))),
            ("token_floor", Lit::Num(self.floor.map_or(0, Token::get))),
            ("ord", Lit::Num(self.order)),
            ("queued", Lit::Num(self.queued)),
            ("used", Lit::Num(self.used)),
            ("end_how", Lit::or_null(self.end.map(|(how, _)| Lit::word(how.word())))),
            ("end_at", Lit::or_null(self.end.map(|(_, at)| Lit::Num(at)))),
            ("buried_until", Lit::Num(self.buried_until)),
            ("past", Lit::bytes(&self.past)),
        ];
        let seat = self.holder.as_ref();
        let held = seat.and_then(|s| s.held().map(|h| (s, h)));
        let mut add = |column, of: &dyn Fn(&Seat, &Held) -> Lit| {
            columns.push((column, Lit::or_null(held.map(|(seat, held)| of(seat, held)))));
        };
        add("h_claim", &|s, _| Lit::id(s.entry.claim.id.bits()));
        add("h_holder", &|s, _| Lit::id(s.entry.claim.holder.id.bits()));
        add("h_label", &|s, _| Lit::word(s.entry.claim.holder.label()));
        add("h_ord", &|s, _| Lit::Num(s.entry.order));
        add("h_entered", &|s, _| Lit::Num(micros(s.entry.entered_at)));
        add("h_since", &|_, h| Lit::Num(micros(h.since)));
        add("h_term", &|s, _| Lit::Num(span_micros(s.entry.claim.term)));
        add("h_life", &|s, _| Lit::word(life_word(s.entry.claim.life)));
        add("h_previous", &|_, h| Lit::word(h.previous.word()));
        add("h_broken", &|_, h| Lit::flag(h.broken));
        add("h_span", &|s, _| Lit::Num(s.span));
        add("h_until", &|s, _| Lit::Num(s.until()));
        columns
    }

    /// Remembers a released claim, and forgets what is not to be remembered any longer.
    pub(crate) fn bury_released(&mut self, claim: ClaimId, until: u64, now: u64) {
        let live: Vec<&[u8]> =
            self.past.chunks_exact(PAST_LEN).filter(|p| past_until(p) > now).collect();
        let skip = live.len().saturating_sub(PAST_MAX - 1);
        let mut kept: Vec<u8> = live[skip..].concat();
        kept.extend_from_slice(&claim.bits().to_be_bytes());
        kept.extend_from_slice(&until.to_be_bytes());
        self.past = kept;
    }

    /// The claims released lately, and until when that is remembered.
    pub(crate) fn released(&self) -> impl Iterator<Item = (ClaimId, u64)> {
        self.past.chunks_exact(PAST_LEN).filter_map(|chunk| {
            let id = <[u8; 16]>::try_from(chunk.get(..16)?).ok()?;
            Some((ClaimId::from_bits(u128::from_be_bytes(id)), past_until(chunk)))
        })
    }
}

/// How many released claims a resource remembers.
pub(crate) const PAST_MAX: usize = 32;
/// The bytes of one of them.
pub(crate) const PAST_LEN: usize = 24;

fn past_until(chunk: &[u8]) -> u64 {
    let bytes = chunk.get(16..24).and_then(|b| <[u8; 8]>::try_from(b).ok());
    bytes.map_or(0, u64::from_be_bytes)
}

fn read_holder(
    cells: &mut Cells,
    name: &ResourceName,
    id: ClaimId,
    token: Option<Token>,
) -> Result<Seat> {
    let holder = cells.holder()?;
    let order = cells.num()?;
    let (entered_at, since) = (cells.moment()?, cells.moment()?);
    let (term, life) = (cells.span()?, cells.life()?);
    let previous = cells.maybe_previous()?.unwrap_or(Previous::First);
    let broken = cells.flag()?;
    let span = cells.num()?;
    let until = cells.moment()?;
    let token = token.ok_or_else(|| cells.bad("it is held and has no token"))?;
    let claim = Claim {
        id,
        resource: name.clone(),
        holder,
        mode: Mode::Exclusive,
        term,
        life,
        place: Place::No,
        after_loss: Duration::ZERO,
    };
    let held = Held { token, slots: Slots::default(), until, since, previous, broken };
    let entry =
        Entry { claim, order, stands_as: Mode::Exclusive, entered_at, state: State::Granted(held) };
    Ok(Seat { entry, sub: 0, span })
}

/// Reads a row of `leasehold_claim`.
pub(crate) fn read_claim(row: Row) -> Result<(ResourceName, Seat)> {
    let mut cells = Cells::new(row);
    let resource = cells.name()?;
    let (order, sub) = (cells.num()?, cells.small()?);
    let id = cells.claim()?;
    let holder = cells.holder()?;
    let (mode, count, limit) = (cells.text()?, cells.small()?, cells.small()?);
    let (stands, stands_count) = (cells.text()?, cells.small()?);
    let mode = cells.mode(&mode, count, limit)?;
    let stands_as = cells.mode(&stands, stands_count, limit)?;
    let entered_at = cells.moment()?;
    let (term, life) = (cells.span()?, cells.life()?);
    let place = match cells.span()? {
        Duration::ZERO => Place::No,
        term => Place::Term(term),
    };
    let after_loss = cells.span()?;
    let token = cells.maybe_token()?;
    let slots = cells.slots(stands_as)?;
    let since = cells.maybe_num()?;
    let previous = cells.maybe_previous()?;
    let broken = cells.flag()?;
    let span = cells.num()?;
    let until = cells.moment()?;
    let state = match (token, since) {
        (None, _) => State::Waiting { ticket: Ticket(order), until },
        (Some(token), Some(since)) => State::Granted(Held {
            token,
            slots,
            until,
            since: moment(since),
            previous: previous.unwrap_or(Previous::First),
            broken,
        }),
        (Some(_), None) => return Err(cells.bad("a grant has no beginning")),
    };
    let claim =
        Claim { id, resource: resource.clone(), holder, mode, term, life, place, after_loss };
    let entry = Entry { claim, order, stands_as, entered_at, state };
    Ok((resource, Seat { entry, sub, span }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_releases_are_remembered() {
        let mut row = ResourceRow::default();
        for n in 0..100_u64 {
            row.bury_released(ClaimId::from_bits(n.into()), 1000 + n, 1050);
        }
        let kept: Vec<u128> = row.released().map(|(id, _)| id.bits()).collect();
        assert_eq!(kept, (68..100).collect::<Vec<u128>>());
        assert_eq!(row.past.len(), PAST_MAX * PAST_LEN);
        row.bury_released(ClaimId::from_bits(7), 2000, 1098);
        assert_eq!(row.released().map(|(id, _)| id.bits()).collect::<Vec<_>>(), [99, 7]);
    }
}
