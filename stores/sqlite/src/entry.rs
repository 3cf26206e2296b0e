//! A claim as a row, and rows read with distrust.

use std::time::Duration;

use leasehold_core::{
    ClaimId, Ended, Grant, Holder, HolderId, Life, Mode, Moment, Previous, ResourceName, Slots,
    Ticket, Token,
};
use rusqlite::Row;
use rusqlite::types::ValueRef;

use crate::error::{Fail, Step, corrupt};
use crate::live::Home;

/// A live claim.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: ClaimId,
    pub(crate) holder: Holder,
    pub(crate) order: i64,
    pub(crate) sub: i64,
    pub(crate) mode: Mode,
    /// The mode by which it is in the way of others: that of the grant it re-entered, or its own.
    pub(crate) stands_as: Mode,
    pub(crate) entered_at: Moment,
    pub(crate) term: Duration,
    pub(crate) life: Life,
    pub(crate) after_loss: Duration,
    pub(crate) home: Home,
    pub(crate) ticket: Ticket,
    pub(crate) held: Option<Held>,
}

/// A grant.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) slots: Slots,
    pub(crate) until: Moment,
    pub(crate) since: Moment,
    pub(crate) previous: Previous,
    pub(crate) broken: bool,
}

impl Entry {
    /// Whether it may stand in the resource's own row.
    pub(crate) fn is_plain_holder(&self) -> bool {
        self.held.is_some()
            && self.sub == 0
            && self.mode == Mode::Exclusive
            && self.stands_as == Mode::Exclusive
    }

    /// Its grant, with what is left of its term.
    pub(crate) fn grant(&self, now: Moment) -> Option<Grant<Duration>> {
        self.held.as_ref().map(|held| Grant {
            claim: self.id,
            token: held.token,
            until: held.until.since(now),
            slots: held.slots.clone(),
            previous: held.previous,
        })
    }
}

/// A moment or a span as a column.
pub(crate) fn column(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

pub(crate) fn span_column(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

pub(crate) const fn life_word(life: Life) -> &'static str {
    match life {
        Life::Process => "process",
        Life::Term => "term",
    }
}

/// A mode as columns: word, count, limit.
pub(crate) fn mode_columns(mode: Mode) -> (&'static str, u32, u32) {
    match mode {
        Mode::Exclusive => ("exclusive", 0, 0),
        Mode::Shared => ("shared", 0, 0),
        Mode::Permits { count, limit } => ("permits", count, limit),
    }
}

/// The most bytes that slots take, one bit each.
pub(crate) const SLOT_BYTES: usize = 128;

/// Slots as bits, lowest first.
pub(crate) fn slots_column(slots: &Slots) -> Option<Vec<u8>> {
    let last = *slots.as_slice().last()? as usize;
    let mut bits = vec![0_u8; last / 8 + 1];
    for &slot in slots.as_slice() {
        bits[slot as usize / 8] |= 1 << (slot % 8);
    }
    Some(bits)
}

pub(crate) fn slots_from_bits(bits: &[u8]) -> Slots {
    let mut numbers = Vec::new();
    let mut number = 0_u32;
    for &byte in bits {
        for bit in 0..8 {
            if byte >> bit & 1 == 1 {
                numbers.push(number);
            }
            number += 1;
        }
    }
    Slots::new(numbers)
}

/// Reads the columns of a row in turn, and believes none of them.
pub(crate) struct Reader<'r, 'q> {
    row: &'r Row<'q>,
    next: usize,
    resource: &'r ResourceName,
}

impl<'r, 'q> Reader<'r, 'q> {
    pub(crate) fn new(row: &'r Row<'q>, next: usize, resource: &'r ResourceName) -> Self {
        Reader { row, next, resource }
    }

    pub(crate) fn bad(&self, what: &str) -> Fail {
        corrupt(self.resource, what)
    }

    pub(crate) fn skip(&mut self, columns: usize) {
        self.next += columns;
    }

    fn value(&mut self) -> Step<ValueRef<'r>> {
        let value = self.row.get_ref(self.next)?;
        self.next += 1;
        Ok(value)
    }

    pub(crate) fn is_null(&self) -> Step<bool> {
        Ok(self.row.get_ref(self.next)? == ValueRef::Null)
    }

    pub(crate) fn int(&mut self) -> Step<i64> {
        match self.value()? {
            ValueRef::Integer(n) => Ok(n),
            _ => Err(self.bad("a number is missing")),
        }
    }

    pub(crate) fn natural(&mut self) -> Step<u64> {
        let n = self.int()?;
        u64::try_from(n).map_err(|_| self.bad("a number is below zero"))
    }

    pub(crate) fn small(&mut self) -> Step<u32> {
        let n = self.int()?;
        u32::try_from(n).map_err(|_| self.bad("a number is out of range"))
    }

    pub(crate) fn moment(&mut self) -> Step<Moment> {
        Ok(Moment::from_nanos(self.natural()?))
    }

    pub(crate) fn span(&mut self) -> Step<Duration> {
        Ok(Duration::from_nanos(self.natural()?))
    }

    pub(crate) fn flag(&mut self) -> Step<bool> {
        match self.int()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn text(&mut self) -> Step<&'r str> {
        match self.value()? {
            ValueRef::Text(bytes) => {
                std::str::from_utf8(bytes).map_err(|_| self.bad("a text is not UTF-8"))
            }
            _ => Err(self.bad("a text is missing")),
        }
    }

    pub(crate) fn bytes(&mut self) -> Step<&'r [u8]> {
        match self.value()? {
            ValueRef::Blob(bytes) => Ok(bytes),
            _ => Err(self.bad("bytes are missing")),
        }
    }

    pub(crate) fn id(&mut self) -> Step<u128> {
        let bytes = self.bytes()?;
        let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| self.bad("an id has not 16 bytes"))?;
        Ok(u128::from_be_bytes(bytes))
    }

    pub(crate) fn holder(&mut self) -> Step<Holder> {
        let id = HolderId::from_bits(self.id()?);
        Ok(Holder::new(id, self.text()?))
    }

    pub(crate) fn token(&mut self) -> Step<Token> {
        let n = self.natural()?;
        Token::new(n).ok_or_else(|| self.bad("a token is out of range"))
    }

    pub(crate) fn ended(&mut self) -> Step<Ended> {
        let word = self.text()?;
        Ended::from_word(word).ok_or_else(|| self.bad("how a grant ended is no known word"))
    }

    pub(crate) fn previous(&mut self) -> Step<Previous> {
        match self.text()? {
            "first" => Ok(Previous::First),
            word => Ended::from_word(word)
                .map(Previous::Ended)
                .ok_or_else(|| self.bad("how a grant ended is no known word")),
        }
    }

    pub(crate) fn life(&mut self) -> Step<Life> {
        match self.text()? {
            "process" => Ok(Life::Process),
            "term" => Ok(Life::Term),
            _ => Err(self.bad("a claim's life is no known word")),
        }
    }

    pub(crate) fn mode(&mut self, word: &str, count: u32, limit: u32) -> Step<Mode> {
        let mode = match word {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "permits" => Mode::Permits { count, limit },
            _ => return Err(self.bad("a mode is no known word")),
        };
        if mode.is_valid() { Ok(mode) } else { Err(self.bad("permits do not fit their limit")) }
    }

    pub(crate) fn home(&mut self) -> Step<Home> {
        Ok(Home {
            live: self.int()?.cast_unsigned(),
            byte: self.natural()?,
            pid: self.small()?,
            pid_ns: self.int()?.cast_unsigned(),
        })
    }

    /// A row of `claim`, in the order of the columns in claim_after.sql.
    pub(crate) fn entry(&mut self) -> Step<Entry> {
        let (order, sub) = (self.int()?, self.int()?);
        let id = ClaimId::from_bits(self.id()?);
        let holder = self.holder()?;
        let (word, count, limit) = (self.text()?, self.small()?, self.small()?);
        let (stands, stands_count) = (self.text()?, self.small()?);
        let mode = self.mode(word, count, limit)?;
        let stands_as = self.mode(stands, stands_count, limit)?;
        let entered_at = self.moment()?;
        let term = self.span()?;
        let life = self.life()?;
        let after_loss = self.span()?;
        let home = self.home()?;
        let ticket = Ticket(self.natural()?);
        let held = if self.is_null()? {
            self.skip(6);
            None
        } else {
            Some(self.held(stands_as)?)
        };
        Ok(Entry {
            id,
            holder,
            order,
            sub,
            mode,
            stands_as,
            entered_at,
            term,
            life,
            after_loss,
            home,
            ticket,
            held,
        })
    }

    fn held(&mut self, stands_as: Mode) -> Step<Held> {
        let token = self.token()?;
        let slots = if self.is_null()? {
            self.skip(1);
            Slots::default()
        } else {
            let bits = self.bytes()?;
            if bits.len() > SLOT_BYTES {
                return Err(self.bad("its slots are too many"));
            }
            slots_from_bits(bits)
        };
        if let Mode::Permits { limit, .. } = stands_as
            && slots.as_slice().last().is_some_and(|&last| last >= limit)
        {
            return Err(self.bad("a slot is above the limit"));
        }
        Ok(Held {
            token,
            slots,
            until: self.moment()?,
            since: self.moment()?,
            previous: self.previous()?,
            broken: self.flag()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_survive_their_bits(numbers in proptest::collection::btree_set(0..1024_u32, 0..40)) {
            let slots = Slots::new(numbers.into_iter().collect());
            let bits = slots_column(&slots).unwrap_or_default();
            prop_assert!(bits.len() <= 128);
            prop_assert_eq!(slots_from_bits(&bits), slots);
        }
    }
}
