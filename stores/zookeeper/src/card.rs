//! What nodes hold, as text that people can read in `zkCli`.

use std::fmt::Write as _;
use std::time::Duration;

use leasehold_core::{Claim, ClaimId, Ended, Holder, HolderId, Previous, Slots, Token};

const FIRST: &str = "leasehold 1";

/// What a contender's node says of its claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) claim: ClaimId,
    pub(crate) holder: Holder,
    pub(crate) term: Duration,
    pub(crate) slots: Slots,
    pub(crate) broken: bool,
}

impl Card {
    pub(crate) fn of(claim: &Claim) -> Card {
        Card {
            claim: claim.id,
            holder: claim.holder.clone(),
            term: claim.term,
            slots: Slots::default(),
            broken: false,
        }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut text = format!("{FIRST}\nclaim {}\nholder {}\n", self.claim, self.holder.id);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "term_ms {}", self.term.as_millis());
        if !self.slots.is_empty() {
            let _ = writeln!(text, "slots {}", self.slots);
        }
        if self.broken {
            text.push_str("broken\n");
        }
        let _ = writeln!(text, "label {}", self.holder.label());
        text.into_bytes()
    }

    /// `None` for what a foreign client wrote.
    pub(crate) fn read(data: &[u8]) -> Option<Card> {
        let text = std::str::from_utf8(data).ok()?;
        let mut lines = text.lines();
        if lines.next() != Some(FIRST) {
            return None;
        }
        let (mut claim, mut holder, mut label) = (None, None, "");
        let (mut term, mut slots, mut broken) = (Duration::ZERO, Slots::default(), false);
        for line in lines {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "claim" => claim = value.parse::<ClaimId>().ok(),
                "holder" => holder = value.parse::<HolderId>().ok(),
                "term_ms" => term = Duration::from_millis(value.parse().ok()?),
                "slots" => slots = Slots::new(numbers(value)?),
                "broken" => broken = true,
                "label" => label = value,
                _ => {}
            }
        }
        Some(Card { claim: claim?, holder: Holder::new(holder?, label), term, slots, broken })
    }
}

fn numbers(text: &str) -> Option<Vec<u32>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

/// What is remembered of a resource: how its last grant ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) how: Ended,
    pub(crate) token: Option<Token>,
}

impl Memory {
    pub(crate) fn write(self) -> Vec<u8> {
        let token = self.token.map_or(0, Token::get);
        format!("{FIRST}\nlast {} {token}\n", self.how).into_bytes()
    }

    /// `None` where none has ended yet.
    pub(crate) fn read(data: &[u8]) -> Option<Memory> {
        let text = std::str::from_utf8(data).ok()?;
        let last = text.lines().find_map(|line| line.strip_prefix("last "))?;
        let (how, token) = last.split_once(' ')?;
        Some(Memory { how: Ended::from_word(how)?, token: Token::new(token.parse().ok()?) })
    }

    pub(crate) fn previous(memory: Option<Memory>) -> Previous {
        memory.map_or(Previous::First, |memory| Previous::Ended(memory.how))
    }
}

/// What the mark of a claim says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Its contender stands; if it does not, the claim died.
    Stands,
    /// An enter of it may still arrive, and must not stand.
    Barred,
    /// It was broken and freed; its holder may not know yet.
    Broken,
}

impl Mark {
    pub(crate) fn write(self) -> Vec<u8> {
        match self {
            Mark::Stands => b"stands".to_vec(),
            Mark::Barred => b"barred".to_vec(),
            Mark::Broken => b"broken".to_vec(),
        }
    }

    pub(crate) fn read(data: &[u8]) -> Mark {
        match data {
            b"barred" => Mark::Barred,
            b"broken" => Mark::Broken,
            _ => Mark::Stands,
        }
    }
}

/// A record, with its head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) token: Token,
    pub(crate) keep: Duration,
    pub(crate) value: Vec<u8>,
}

impl Stored {
    pub(crate) fn write(&self) -> Vec<u8> {
        let keep_ms = self.keep.as_millis();
        let mut data =
            format!("{FIRST}\ntoken {}\nkeep_ms {keep_ms}\n\n", self.token.get()).into_bytes();
        data.extend_from_slice(&self.value);
        data
    }

    pub(crate) fn read(data: &[u8]) -> Option<Stored> {
        let end = data.windows(2).position(|two| two == b"\n\n")?;
        let (head, value) = (data.get(..end)?, data.get(end + 2..)?);
        let head = std::str::from_utf8(head).ok()?;
        let find = |key: &str| head.lines().find_map(|line| line.strip_prefix(key));
        Some(Stored {
            token: Token::new(find("token ")?.parse().ok()?)?,
            keep: Duration::from_millis(find("keep_ms ")?.parse().ok()?),
            value: value.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let card = Card {
            claim: ClaimId::from_bits(7),
            holder: Holder::new(HolderId::from_bits(9), " é  broken "),
            term: Duration::from_millis(1500),
            slots: Slots::new(vec![0, 4]),
            broken: true,
        };
        assert_eq!(Card::read(&card.write()), Some(card.clone()));
        let plain = Card {
            holder: Holder::new(HolderId::from_bits(9), ""),
            slots: Slots::default(),
            broken: false,
            ..card
        };
        assert_eq!(Card::read(&plain.write()), Some(plain));
        assert_eq!(Card::read(b"192.0.2.7"), None);
        assert_eq!(Card::read(b"\xff"), None);
        let memory = Memory { how: Ended::Expired, token: Token::new(12) };
        assert_eq!(Memory::read(&memory.write()), Some(memory));
        assert_eq!(Memory::read(b""), None);
        for mark in [Mark::Stands, Mark::Barred, Mark::Broken] {
            assert_eq!(Mark::read(&mark.write()), mark);
        }
        let stored = Stored {
            token: Token::new(3).unwrap(),
            keep: Duration::from_secs(60),
            value: b"a\n\nb\xff".to_vec(),
        };
        assert_eq!(Stored::read(&stored.write()), Some(stored));
        assert_eq!(Stored::read(b"\n\n"), None);
    }
}
