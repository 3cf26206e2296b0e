//! Claims: who asks for what, how, for how long, and whether they queue.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::name::ResourceName;
use crate::token::Token;

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// An id of these 128 bits, which the caller draws at random.
            pub const fn from_bits(bits: u128) -> $name {
                $name(bits)
            }

            /// The 128 bits.
            pub const fn bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:032x})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<$name, BadId> {
                let digits = text.len() == 32
                    && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                if !digits {
                    return Err(BadId);
                }
                u128::from_str_radix(text, 16).map($name).map_err(|_| BadId)
            }
        }
    };
}

id128! {
    /// The id of a claim: 128 random bits, made by the caller, used once and never again.
    ///
    /// Every verb names the claim by it, so that a verb may be sent again when its reply was lost.
    ClaimId
}

id128! {
    /// The random part of a holder, by which re-entry is recognised.
    HolderId
}

/// A text is not an id of 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is not 32 lower-case hexadecimal digits")]
pub struct BadId;

/// An endless stream of ids from 128 random bits, without repeats.
///
/// Core draws no random numbers itself; a machine that needs a fresh claim id takes the next of
/// this stream. Within one stream no id repeats, since each step is a bijection of the counter.
#[derive(Debug, Clone)]
pub struct Ids {
    state: u128,
}

impl Ids {
    /// A stream that starts from these 128 random bits.
    pub const fn seeded(bits: u128) -> Ids {
        Ids { state: bits }
    }

    /// The next id.
    pub fn claim(&mut self) -> ClaimId {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mut x = self.state;
        x = (x ^ (x >> 67)).wrapping_mul(0xda94_2042_e4dd_58b5_2b7e_1516_28ae_d2a7);
        x = (x ^ (x >> 61)).wrapping_mul(0xca01_f9dd_51a2_14cf_9d39_247e_3377_6d41);
        ClaimId(x ^ (x >> 64))
    }
}

/// Who claims: a label a person can read, and a random id.
///
/// A label never re-enters; only the same id does. Pass one `Holder` value to two acquisitions,
/// or its id to another process, to let the second enter what the first holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Holder {
    /// The random id.
    pub id: HolderId,
    label: Arc<str>,
}

impl Holder {
    /// The longest label, in bytes.
    pub const LABEL_MAX: usize = 200;

    /// A holder. Control characters of the label become `?`; it is cut to
    /// [`Holder::LABEL_MAX`] bytes.
    pub fn new(id: HolderId, label: &str) -> Holder {
        let mut end = label.len().min(Holder::LABEL_MAX);
        while !label.is_char_boundary(end) {
            end -= 1;
        }
        let cut = &label[..end];
        let label = if cut.chars().any(char::is_control) {
            cut.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>().into()
        } else {
            cut.into()
        };
        Holder { id, label }
    }

    /// The label: host, pid and program unless the user chose another.
    pub fn label(&self) -> &str {
        &self.label
    }
}

/// How a resource is claimed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other shared claims.
    Shared,
    /// `count` of `limit` numbered slots. Every claim of one resource names the same limit.
    Permits {
        /// How many slots, at least 1 and at most `limit`.
        count: u32,
        /// How many slots the resource has, at most [`Mode::LIMIT_MAX`].
        limit: u32,
    },
}

impl Mode {
    /// The most slots a resource of permits may have.
    pub const LIMIT_MAX: u32 = 1024;

    /// The kind of resource this mode belongs to.
    pub const fn kind(self) -> Kind {
        match self {
            Mode::Exclusive | Mode::Shared => Kind::Lock,
            Mode::Permits { limit, .. } => Kind::Permits { limit },
        }
    }

    /// Whether a grant of this mode allows all that `inner` asks for, so that its holder may
    /// re-enter. There is no upgrade: a shared grant does not cover an exclusive claim.
    pub const fn covers(self, inner: Mode) -> bool {
        match (self, inner) {
            (Mode::Exclusive, Mode::Exclusive | Mode::Shared) => true,
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits { count, limit }, Mode::Permits { count: n, limit: l }) => {
                n <= count && l == limit
            }
            _ => false,
        }
    }

    /// Whether the numbers make sense.
    pub const fn is_valid(self) -> bool {
        match self {
            Mode::Exclusive | Mode::Shared => true,
            Mode::Permits { count, limit } => {
                count >= 1 && count <= limit && limit <= Mode::LIMIT_MAX
            }
        }
    }
}

/// What kind a resource is while any claim on it lives; another kind is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Exclusive and shared claims.
    Lock,
    /// Permits of one limit.
    Permits {
        /// How many slots there are.
        limit: u32,
    },
}

/// What, besides its term, ends a claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Life {
    /// Also the death of the process that holds it, where the store can see that (the embedded
    /// store by the kernel, etcd and ZooKeeper by their sessions).
    Process,
    /// Nothing: it may outlive its maker and be passed on by its id.
    Term,
}

/// Whether a claim that cannot be admitted now waits in the store's queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Never queue: the answer is granted or busy, and leaves nothing behind.
    No,
    /// Queue; the place is kept for this long after the last word from the waiter, except where
    /// the kernel holds it.
    Term(Duration),
}

/// One request for a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Made by the caller, used once.
    pub id: ClaimId,
    /// What is claimed.
    pub resource: ResourceName,
    /// Who claims.
    pub holder: Holder,
    /// How.
    pub mode: Mode,
    /// How long a grant lasts unless renewed.
    pub term: Duration,
    /// What else ends it.
    pub life: Life,
    /// Whether it queues.
    pub place: Place,
    /// How long after an unclean end of the grant before it this claim is held back; zero for
    /// not at all.
    pub after_loss: Duration,
}

impl Claim {
    /// The short form by which later verbs name this claim.
    pub fn to_ref(&self) -> ClaimRef {
        ClaimRef {
            id: self.id,
            resource: self.resource.clone(),
            token: None,
            term: self.term,
            life: self.life,
            enter_unanswered: false,
        }
    }
}

/// A claim named in a later verb: by its id always, by its token once granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClaimRef {
    /// Which claim.
    pub id: ClaimId,
    /// On what.
    pub resource: ResourceName,
    /// The grant, once there is one.
    pub token: Option<Token>,
    /// The term that a renewal grants from now on.
    pub term: Duration,
    /// The life that a renewal gives it from now on.
    pub life: Life,
    /// Some `enter` of this claim was sent and not answered: a leave then leaves a tombstone, so
    /// that the enter, should it arrive after all, makes no ghost.
    pub enter_unanswered: bool,
}

/// What a waiting answer carries: new each time a claim is queued, never reused.
///
/// A grant pushed to a waiter is believed only with the ticket of its last waiting answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::string::ToString;

    #[test]
    fn ids_do_not_repeat_and_survive_their_text() {
        let mut ids = Ids::seeded(0);
        let drawn: BTreeSet<_> = (0..10_000).map(|_| ids.claim()).collect();
        assert_eq!(drawn.len(), 10_000);
        for id in drawn.iter().take(100) {
            assert_eq!(id.to_string().parse(), Ok(*id));
        }
        assert!("F".repeat(32).parse::<ClaimId>().is_err(), "one spelling only");
        assert!("+".repeat(32).parse::<ClaimId>().is_err());
    }

    #[test]
    fn labels_are_cut_at_a_character_and_cleaned() {
        let long = "é".repeat(150);
        assert_eq!(Holder::new(HolderId::from_bits(1), &long).label().len(), 200);
        assert_eq!(Holder::new(HolderId::from_bits(1), "a\x1bb").label(), "a?b");
    }

    #[test]
    fn coverage_never_upgrades() {
        let two = Mode::Permits { count: 2, limit: 3 };
        let one = Mode::Permits { count: 1, limit: 3 };
        assert!(Mode::Exclusive.covers(Mode::Shared) && Mode::Shared.covers(Mode::Shared));
        assert!(!Mode::Shared.covers(Mode::Exclusive));
        assert!(two.covers(one) && !one.covers(two));
        assert!(!two.covers(Mode::Permits { count: 1, limit: 4 }));
    }
}
