//! Rows read with distrust.

use std::time::Duration;

use leasehold_core::{
    ClaimId, Ended, Error, Holder, HolderId, Life, Mode, Moment, Previous, ResourceName, Result,
    Slots, Token,
};
use mysql_async::{Row, Value};

use crate::error::{bad_name, corrupt, corrupt_table};

/// The most bytes that slots take, one bit each.
pub(crate) const SLOT_BYTES: usize = 128;

/// The columns of a row, in turn; none of them is believed.
pub(crate) struct Cells {
    values: std::vec::IntoIter<Value>,
    resource: Option<ResourceName>,
}

impl Cells {
    pub(crate) fn new(row: Row) -> Cells {
        Cells {
            values: row
                .unwrap_raw()
                .into_iter()
                .map(|v| v.unwrap_or(Value::NULL))
                .collect::<Vec<_>>()
                .into_iter(),
            resource: None,
        }
    }

    pub(crate) fn bad(&self, what: &str) -> Error {
        match &self.resource {
            Some(resource) => corrupt(resource, what),
            None => corrupt_table(what),
        }
    }

    /// A column with a resource's name; what is wrong from here on is wrong there.
    pub(crate) fn name(&mut self) -> Result<ResourceName> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(&bytes).map_err(|_| bad_name())?;
        let name = ResourceName::new(text).map_err(|_| bad_name())?;
        self.resource = Some(name.clone());
        Ok(name)
    }

    fn value(&mut self) -> Result<Value> {
        self.values.next().ok_or_else(|| self.bad("a column is missing"))
    }

    pub(crate) fn maybe_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        match self.value()? {
            Value::Bytes(bytes) => Ok(Some(bytes)),
            Value::NULL => Ok(None),
            _ => Err(self.bad("a column is of another type")),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        self.maybe_bytes()?.ok_or_else(|| self.bad("a value is missing"))
    }

    pub(crate) fn maybe_num(&mut self) -> Result<Option<u64>> {
        match self.value()? {
            Value::NULL => Ok(None),
            Value::UInt(n) => Ok(Some(n)),
            Value::Int(n) => match u64::try_from(n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(self.bad("a number is below zero")),
            },
            Value::Bytes(digits) => {
                let number = std::str::from_utf8(&digits).ok().and_then(|d| d.parse().ok());
                match number {
                    Some(n) => Ok(Some(n)),
                    None => Err(self.bad("a number is out of range")),
                }
            }
            _ => Err(self.bad("a column is of another type")),
        }
    }

    pub(crate) fn num(&mut self) -> Result<u64> {
        self.maybe_num()?.ok_or_else(|| self.bad("a number is missing"))
    }

    pub(crate) fn small(&mut self) -> Result<u32> {
        let n = self.num()?;
        u32::try_from(n).map_err(|_| self.bad("a number is out of range"))
    }

    pub(crate) fn moment(&mut self) -> Result<Moment> {
        Ok(moment(self.num()?))
    }

    pub(crate) fn span(&mut self) -> Result<Duration> {
        Ok(Duration::from_micros(self.num()?))
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        match self.num()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes).map_err(|_| self.bad("a text is not UTF-8"))
    }

    pub(crate) fn maybe_text(&mut self) -> Result<Option<String>> {
        let bytes = self.maybe_bytes()?;
        let text = bytes.map(String::from_utf8).transpose();
        text.map_err(|_| self.bad("a text is not UTF-8"))
    }

    pub(crate) fn maybe_id(&mut self) -> Result<Option<u128>> {
        let Some(bytes) = self.maybe_bytes()? else { return Ok(None) };
        let bytes = <[u8; 16]>::try_from(bytes).map_err(|_| self.bad("an id has not 16 bytes"))?;
        Ok(Some(u128::from_be_bytes(bytes)))
    }

    pub(crate) fn id(&mut self) -> Result<u128> {
        self.maybe_id()?.ok_or_else(|| self.bad("an id is missing"))
    }

    pub(crate) fn claim(&mut self) -> Result<ClaimId> {
        Ok(ClaimId::from_bits(self.id()?))
    }

    pub(crate) fn holder(&mut self) -> Result<Holder> {
        let id = HolderId::from_bits(self.id()?);
        Ok(Holder::new(id, &self.text()?))
    }

    pub(crate) fn maybe_token(&mut self) -> Result<Option<Token>> {
        match self.maybe_num()? {
            None | Some(0) => Ok(None),
            Some(n) => match Token::new(n) {
                Some(token) => Ok(Some(token)),
                None => Err(self.bad("a token is out of range")),
            },
        }
    }

    pub(crate) fn maybe_ended(&mut self) -> Result<Option<Ended>> {
        let Some(word) = self.maybe_text()? else { return Ok(None) };
        match Ended::from_word(&word) {
            Some(how) => Ok(Some(how)),
            None => Err(self.bad("how a grant ended is no known word")),
        }
    }

    pub(crate) fn maybe_previous(&mut self) -> Result<Option<Previous>> {
        let Some(word) = self.maybe_text()? else { return Ok(None) };
        if word == Previous::First.word() {
            return Ok(Some(Previous::First));
        }
        match Ended::from_word(&word) {
            Some(how) => Ok(Some(Previous::Ended(how))),
            None => Err(self.bad("how a grant ended is no known word")),
        }
    }

    pub(crate) fn life(&mut self) -> Result<Life> {
        match self.text()?.as_str() {
            "process" => Ok(Life::Process),
            "term" => Ok(Life::Term),
            _ => Err(self.bad("a claim's life is no known word")),
        }
    }

    pub(crate) fn mode(&self, word: &str, count: u32, limit: u32) -> Result<Mode> {
        let mode = match word {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "permits" => Mode::Permits { count, limit },
            _ => return Err(self.bad("a mode is no known word")),
        };
        if mode.is_valid() { Ok(mode) } else { Err(self.bad("permits do not fit their limit")) }
    }

    pub(crate) fn slots(&mut self, stands_as: Mode) -> Result<Slots> {
        let Some(bits) = self.maybe_bytes()? else { return Ok(Slots::default()) };
        if bits.len() > SLOT_BYTES {
            return Err(self.bad("its slots are too many"));
        }
        let slots = slots_from_bits(&bits);
        match stands_as {
            Mode::Permits { limit, .. }
                if slots.as_slice().last().is_some_and(|&last| last >= limit) =>
            {
                Err(self.bad("a slot is above the limit"))
            }
            _ => Ok(slots),
        }
    }
}

pub(crate) fn moment(micros: u64) -> Moment {
    Moment::from_nanos(micros.saturating_mul(1000))
}

/// A moment as a column: not before it.
pub(crate) fn micros(moment: Moment) -> u64 {
    moment.as_nanos().div_ceil(1000)
}

/// A span as a column: not shorter.
pub(crate) fn span_micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

pub(crate) const fn life_word(life: Life) -> &'static str {
    match life {
        Life::Process => "process",
        Life::Term => "term",
    }
}

/// A mode as columns: word, count, limit.
pub(crate) const fn mode_columns(mode: Mode) -> (&'static str, u32, u32) {
    match mode {
        Mode::Exclusive => ("exclusive", 0, 0),
        Mode::Shared => ("shared", 0, 0),
        Mode::Permits { count, limit } => ("permits", count, limit),
    }
}

/// Slots as bits, lowest first.
pub(crate) fn slots_column(slots: &Slots) -> Option<Vec<u8>> {
    let last = *slots.as_slice().last()? as usize;
    let mut bits = vec![0_u8; last / 8 + 1];
    for &slot in slots.as_slice() {
        bits[slot as usize / 8] |= 1 << (slot % 8);
    }
    Some(bits)
}

fn slots_from_bits(bits: &[u8]) -> Slots {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_survive_their_bits(numbers in proptest::collection::btree_set(0..1024_u32, 0..40)) {
            let slots = Slots::new(numbers.into_iter().collect());
            let bits = slots_column(&slots).unwrap_or_default();
            prop_assert!(bits.len() <= SLOT_BYTES);
            prop_assert_eq!(slots_from_bits(&bits), slots);
        }

        #[test]
        fn what_is_kept_is_never_shorter(nanos in 0..u64::MAX / 2) {
            prop_assert!(moment(micros(Moment::from_nanos(nanos))) >= Moment::from_nanos(nanos));
            let span = Duration::from_nanos(nanos);
            prop_assert!(Duration::from_micros(span_micros(span)) >= span);
        }
    }
}
