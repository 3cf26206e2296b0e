//! What a releaser writes into a waiter's FIFO: one short message, written whole or not at all.

use leasehold_core::{ClaimId, Ended, Moment, Previous, Slots, Ticket, Token};

use crate::entry::{Entry, SLOT_BYTES, slots_column, slots_from_bits};
use crate::live::Home;

/// A word for one process.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) to: Home,
    pub(crate) message: Message,
}

/// A word for one waiting claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// Look again.
    Moved {
        /// Who.
        claim: ClaimId,
    },
    /// It has been granted.
    Granted {
        claim: ClaimId,
        ticket: Ticket,
        token: Token,
        /// When, on the clock that all processes share.
        now: Moment,
        until: Moment,
        previous: Previous,
        slots: Slots,
    },
}

/// How many bytes every message has: less than the 512 that POSIX lets a pipe write whole.
pub(crate) const MESSAGE_LEN: usize = 184;
const MAGIC: &[u8; 4] = b"lhw1";
const MOVED: u8 = 1;
const GRANTED: u8 = 2;
const ENDS: [Ended; 8] = [
    Ended::Released,
    Ended::Expired,
    Ended::Died,
    Ended::Broken,
    Ended::Evicted,
    Ended::Failover,
    Ended::Unknown,
    Ended::Clock,
];

impl Word {
    /// Tells a waiting claim to look.
    pub(crate) fn moved(to: &Entry) -> Word {
        Word { to: to.home, message: Message::Moved { claim: to.id } }
    }
}

impl Message {
    pub(crate) fn encode(&self) -> [u8; MESSAGE_LEN] {
        let mut bytes = [0_u8; MESSAGE_LEN];
        bytes[..4].copy_from_slice(MAGIC);
        match self {
            Message::Moved { claim } => {
                bytes[4] = MOVED;
                bytes[8..24].copy_from_slice(&claim.bits().to_be_bytes());
            }
            Message::Granted { claim, ticket, token, now, until, previous, slots } => {
                bytes[4] = GRANTED;
                bytes[5] = previous_code(*previous);
                bytes[8..24].copy_from_slice(&claim.bits().to_be_bytes());
                let numbers = [ticket.0, token.get(), now.as_nanos(), until.as_nanos()];
                for (to, number) in bytes[24..56].chunks_exact_mut(8).zip(numbers) {
                    to.copy_from_slice(&number.to_be_bytes());
                }
                let bits = slots_column(slots).unwrap_or_default();
                let fits = bits.len().min(SLOT_BYTES);
                bytes[56..56 + fits].copy_from_slice(&bits[..fits]);
            }
        }
        bytes
    }

    /// Reads a message; `None` for anything that is not one.
    pub(crate) fn decode(bytes: &[u8; MESSAGE_LEN]) -> Option<Message> {
        if !bytes.starts_with(MAGIC) {
            return None;
        }
        let claim = ClaimId::from_bits(u128::from_be_bytes(bytes[8..24].try_into().ok()?));
        if bytes[4] == MOVED {
            return Some(Message::Moved { claim });
        }
        if bytes[4] != GRANTED {
            return None;
        }
        let number = |at: usize| -> Option<u64> {
            Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        Some(Message::Granted {
            claim,
            ticket: Ticket(number(24)?),
            token: Token::new(number(32)?)?,
            now: Moment::from_nanos(number(40)?),
            until: Moment::from_nanos(number(48)?),
            previous: previous_from(bytes[5])?,
            slots: slots_from_bits(&bytes[56..56 + SLOT_BYTES]),
        })
    }
}

fn previous_code(previous: Previous) -> u8 {
    match previous {
        Previous::First => 0,
        Previous::Ended(how) => {
            let index = ENDS.iter().position(|&e| e == how).unwrap_or(ENDS.len() - 1);
            u8::try_from(index + 1).unwrap_or(0)
        }
    }
}

fn previous_from(code: u8) -> Option<Previous> {
    match code {
        0 => Some(Previous::First),
        n => ENDS.get(usize::from(n) - 1).map(|&how| Previous::Ended(how)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_survive_the_pipe(
            claim: u128, ticket: u64, token in 1..=Token::MAX.get(), until: u64, now: u64,
            how in 0..8_u8, slots in proptest::collection::btree_set(0..1024_u32, 0..5),
        ) {
            let granted = Message::Granted {
                claim: ClaimId::from_bits(claim),
                ticket: Ticket(ticket),
                token: Token::new(token).unwrap(),
                now: Moment::from_nanos(now),
                until: Moment::from_nanos(until),
                previous: previous_from(how).unwrap(),
                slots: Slots::new(slots.into_iter().collect()),
            };
            prop_assert_eq!(Message::decode(&granted.encode()), Some(granted));
            let moved = Message::Moved { claim: ClaimId::from_bits(claim) };
            prop_assert_eq!(Message::decode(&moved.encode()), Some(moved));
        }

        #[test]
        fn noise_is_no_message_and_no_panic(noise in proptest::collection::vec(any::<u8>(), MESSAGE_LEN)) {
            let mut bytes: [u8; MESSAGE_LEN] = noise.try_into().unwrap();
            prop_assert_eq!(Message::decode(&bytes), None);
            bytes[..4].copy_from_slice(MAGIC);
            bytes[4] = GRANTED;
            let _ = Message::decode(&bytes);
        }
    }
}
