//! What is written into keys: JSON that a person can read with `etcdctl get`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_core::{ClaimId, Ended, Holder, HolderId, Life, Mode, Slots, Token};
use serde::{Deserialize, Serialize};

/// The layout of these values.
const VERSION: u32 = 1;

/// The value of a claim's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) holder: Holder,
    pub(crate) mode: Mode,
    pub(crate) life: Life,
    pub(crate) term: Duration,
    /// When it entered, by its maker's wall clock: for people only.
    pub(crate) entered_us: u64,
    /// It may be held back although it is first; then nobody passes it.
    pub(crate) careful: bool,
    pub(crate) granted: Option<Granted>,
}

/// That a claim has been granted, once its holder has said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Granted {
    /// `None` where the grant was made by writing this very value: then it is the revision.
    pub(crate) token: Option<Token>,
    pub(crate) slots: Slots,
    pub(crate) since_us: u64,
}

#[derive(Serialize, Deserialize)]
struct ContenderJson {
    leasehold: u32,
    holder: String,
    label: String,
    mode: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    count: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    limit: u32,
    life: String,
    term_ms: u64,
    entered_us: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    careful: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    granted_us: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    slots: Vec<u32>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Contender {
    /// Whether a grant of it is told by a write of its own: until then it may be first and hold
    /// nothing. Slots are given out one grant at a time.
    pub(crate) fn by_write(&self) -> bool {
        self.careful || matches!(self.mode, Mode::Permits { .. })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let (mode, count, limit) = match self.mode {
            Mode::Exclusive => ("exclusive", 0, 0),
            Mode::Shared => ("shared", 0, 0),
            Mode::Permits { count, limit } => ("permits", count, limit),
        };
        let life = match self.life {
            Life::Process => "process",
            Life::Term => "term",
        };
        let granted = self.granted.as_ref();
        let json = ContenderJson {
            leasehold: VERSION,
            holder: self.holder.id.to_string(),
            label: self.holder.label().to_owned(),
            mode: mode.into(),
            count,
            limit,
            life: life.into(),
            term_ms: u64::try_from(self.term.as_millis()).unwrap_or(u64::MAX),
            entered_us: self.entered_us,
            careful: self.careful,
            granted_us: granted.map(|granted| granted.since_us),
            token: granted.and_then(|granted| granted.token).map(Token::get),
            slots: granted.map(|granted| granted.slots.as_slice().to_vec()).unwrap_or_default(),
        };
        serde_json::to_vec(&json).unwrap_or_default()
    }

    /// `None` for what we have not written.
    pub(crate) fn read(value: &[u8]) -> Option<Contender> {
        let json: ContenderJson = serde_json::from_slice(value).ok()?;
        if json.leasehold != VERSION {
            return None;
        }
        let id: HolderId = json.holder.parse().ok()?;
        let mode = match json.mode.as_str() {
            "exclusive" => Mode::Exclusive,
            "shared" => Mode::Shared,
            "permits" => Mode::Permits { count: json.count, limit: json.limit },
            _ => return None,
        };
        let life = match json.life.as_str() {
            "process" => Life::Process,
            "term" => Life::Term,
            _ => return None,
        };
        let granted = json.granted_us.map(|since_us| Granted {
            token: json.token.and_then(Token::new),
            slots: Slots::new(json.slots),
            since_us,
        });
        mode.is_valid().then(|| Contender {
            holder: Holder::new(id, &json.label),
            mode,
            life,
            term: Duration::from_millis(json.term_ms),
            entered_us: json.entered_us,
            careful: json.careful,
            granted,
        })
    }
}

/// The value of the key that says how the last grant has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    how: String,
    /// Whose.
    claim: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    /// How many claims had ended untold when this grant was made.
    #[serde(default)]
    pub(crate) untold: i64,
    /// When, by the wall clock of who wrote it: for people, and for cleaning.
    pub(crate) at_us: u64,
}

impl End {
    pub(crate) fn new(how: Ended, claim: ClaimId, token: Option<Token>, untold: i64) -> End {
        End {
            how: how.word().into(),
            claim: claim.to_string(),
            token: token.map(Token::get),
            untold,
            at_us: wall_us(),
        }
    }

    /// The same end, otherwise.
    pub(crate) fn but(&self, how: Ended) -> End {
        End { how: how.word().into(), ..self.clone() }
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn read(value: &[u8]) -> Option<End> {
        serde_json::from_slice(value).ok()
    }

    pub(crate) fn how(&self) -> Ended {
        Ended::from_word(&self.how).unwrap_or(Ended::Unknown)
    }

    pub(crate) fn is_of(&self, claim: ClaimId) -> bool {
        self.claim.parse() == Ok(claim)
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.token.and_then(Token::new)
    }
}

/// The value of a key whose version is what counts: when it was last put.
pub(crate) fn stamp() -> Vec<u8> {
    wall_us().to_string().into_bytes()
}

/// Reads what [`stamp`] wrote.
pub(crate) fn read_stamp(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// The wall clock of this machine. Nothing is decided by it but what cleaning takes for old.
pub(crate) fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// How long ago that was, as far as wall clocks can tell.
pub(crate) fn ago(at_us: u64) -> Duration {
    Duration::from_micros(wall_us().saturating_sub(at_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_its_text_and_a_foreign_one_is_none() {
        let contender = Contender {
            holder: Holder::new(HolderId::from_bits(3), "é \"💥\""),
            mode: Mode::Permits { count: 2, limit: 3 },
            life: Life::Term,
            term: Duration::from_secs(30),
            entered_us: 5,
            careful: true,
            granted: Some(Granted {
                token: Token::new(7),
                slots: Slots::new(vec![0, 2]),
                since_us: 6,
            }),
        };
        assert_eq!(Contender::read(&contender.write()), Some(contender));
        for foreign in [&b""[..], b"{}", b"{\"leasehold\":2}", b"host:1234", b"\xff"] {
            assert_eq!(Contender::read(foreign), None);
        }
    }

    #[test]
    fn an_end_survives_its_text() {
        let end = End::new(Ended::Broken, ClaimId::from_bits(9), Token::new(4), 2);
        let read = End::read(&end.write()).unwrap();
        assert_eq!((read.how(), read.token(), read.untold), (Ended::Broken, Token::new(4), 2));
        assert!(read.is_of(ClaimId::from_bits(9)) && !read.is_of(ClaimId::from_bits(8)));
    }
}
