//! Which key is what.
//!
//! ```text
//! PREFIX NAME / CLAIM           a claim; foreign clients see it as one contender
//! PREFIX NAME .lh.in            put with every claim that enters: its version counts them
//! PREFIX NAME .lh.out           how the last grant has ended; its version counts ends that were told
//! PREFIX NAME .lh.gone          put with every waiter that withdraws: its version counts them
//! PREFIX NAME .lh.slot          put with every grant of permit slots: two never choose at once
//! PREFIX NAME .lh.broke         the last grant that an operator broke
//! PREFIX NAME .lh.break-CLAIM   an operator broke that grant; on the lease of its holder
//! PREFIX .leasehold/names/NAME  a name that was used; here the name stands as it is
//! PREFIX .leasehold/record/NAME the record kept with a name
//! PREFIX .leasehold/tomb/CLAIM  a claim that was withdrawn before its enter was answered
//! ```
//!
//! `.` sorts right before `/`, so that one watch hears of a name's claims and of what is kept
//! beside them, and of nothing else; no foreign client takes the latter for contenders.

use leasehold_core::{BadName, ClaimId, Error, ErrorKind, ResourceName, Result};

use crate::config::Names;

/// What stands between a name and what is kept beside it.
const BESIDE: &str = ".lh.";
const OWN: &str = ".leasehold/";
/// What stands for itself in an escaped name.
const SAFE: &[u8] = b":@+,=~";

/// How names become keys here.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) prefix: String,
    pub(crate) names: Names,
}

/// The keys of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    base: String,
}

/// A key and the first key that is not in its range any more.
pub(crate) type Range = (Vec<u8>, Vec<u8>);

/// What is kept beside the claims of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    In,
    Out,
    Gone,
    Slot,
    /// The last grant that an operator broke.
    Broke,
    Broken(ClaimId),
}

impl Layout {
    /// The keys of a resource.
    ///
    /// # Errors
    ///
    /// `Usage` for a name that cannot be a raw key.
    pub(crate) fn keys(&self, name: &ResourceName) -> Result<Keys> {
        let written = match self.names {
            Names::Escaped => name.escaped(SAFE),
            Names::Raw if name.as_str().starts_with(OWN) => {
                let detail = format!("a raw name must not begin with `{OWN}`");
                return Err(Error::new(ErrorKind::Usage, "read a name", detail).on(name));
            }
            Names::Raw => name.as_str().to_owned(),
        };
        Ok(Keys { base: format!("{}{written}", self.prefix) })
    }

    /// The key that says that this name was used.
    pub(crate) fn used(&self, name: &ResourceName) -> Vec<u8> {
        format!("{}{OWN}names/{}", self.prefix, name.as_str()).into_bytes()
    }

    /// The used names that begin with these bytes, after this one, in byte order.
    pub(crate) fn used_range(&self, prefix: &str, after: Option<&ResourceName>) -> Range {
        let root = format!("{}{OWN}names/", self.prefix);
        let first = format!("{root}{prefix}").into_bytes();
        let end = end_of(&first);
        let first = match after {
            Some(after) => {
                let next = format!("{root}{}\0", after.as_str()).into_bytes();
                first.max(next)
            }
            None => first,
        };
        (first, end)
    }

    /// The name in such a key.
    pub(crate) fn used_name(&self, key: &[u8]) -> Option<Result<ResourceName, BadName>> {
        let root = format!("{}{OWN}names/", self.prefix);
        let name = key.strip_prefix(root.as_bytes())?;
        let Ok(name) = std::str::from_utf8(name) else { return Some(Err(BadName::Utf8)) };
        Some(ResourceName::new(name))
    }

    /// The record kept with a name.
    pub(crate) fn record(&self, name: &ResourceName) -> Vec<u8> {
        format!("{}{OWN}record/{}", self.prefix, name.as_str()).into_bytes()
    }

    /// The tombstone of a claim.
    pub(crate) fn tomb(&self, claim: ClaimId) -> Vec<u8> {
        format!("{}{OWN}tomb/{claim}", self.prefix).into_bytes()
    }
}

impl Keys {
    /// A claim.
    pub(crate) fn claim(&self, claim: ClaimId) -> Vec<u8> {
        format!("{}/{claim}", self.base).into_bytes()
    }

    /// All claims, ours and foreign ones.
    pub(crate) fn claims(&self) -> Range {
        (format!("{}/", self.base).into_bytes(), format!("{}0", self.base).into_bytes())
    }

    /// All that is kept beside them.
    pub(crate) fn beside_all(&self) -> Range {
        let first = format!("{}{BESIDE}", self.base).into_bytes();
        let end = end_of(&first);
        (first, end)
    }

    /// Both.
    pub(crate) fn watched(&self) -> Range {
        (self.beside_all().0, self.claims().1)
    }

    /// One of those beside.
    pub(crate) fn beside(&self, what: Beside) -> Vec<u8> {
        let word = match what {
            Beside::In => "in".to_owned(),
            Beside::Out => "out".into(),
            Beside::Gone => "gone".into(),
            Beside::Slot => "slot".into(),
            Beside::Broke => "broke".into(),
            Beside::Broken(claim) => format!("break-{claim}"),
        };
        format!("{}{BESIDE}{word}", self.base).into_bytes()
    }

    /// What stands behind the name's `/` in the key of a contender.
    pub(crate) fn contender<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        key.strip_prefix(self.base.as_bytes())?.strip_prefix(b"/")
    }

    /// Which of those beside a key is.
    pub(crate) fn read_beside(&self, key: &[u8]) -> Option<Beside> {
        let rest = key.strip_prefix(self.base.as_bytes())?.strip_prefix(BESIDE.as_bytes())?;
        Some(match rest {
            b"in" => Beside::In,
            b"out" => Beside::Out,
            b"gone" => Beside::Gone,
            b"slot" => Beside::Slot,
            b"broke" => Beside::Broke,
            other => Beside::Broken(claim_id(other.strip_prefix(b"break-")?)?),
        })
    }
}

/// The claim whose id this is.
pub(crate) fn claim_id(text: &[u8]) -> Option<ClaimId> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The first key that does not begin with these bytes.
fn end_of(first: &[u8]) -> Vec<u8> {
    let mut end = first.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0] // to etcd: all keys from there on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(names: Names) -> Layout {
        Layout { prefix: "p/".into(), names }
    }

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    fn holds(range: &Range, key: &[u8]) -> bool {
        range.0.as_slice() <= key && key < range.1.as_slice()
    }

    #[test]
    fn no_name_is_watched_by_another() {
        let layout = layout(Names::Escaped);
        let names = ["a", "a/b", "a.lh.in", "a.", "a-", "a0", "a b", "aa", "%", "a%2Fb", "A"];
        let claim = ClaimId::from_bits(7);
        for one in names {
            let keys = layout.keys(&name(one)).unwrap();
            for other in names {
                let theirs = layout.keys(&name(other)).unwrap();
                let same = one == other;
                assert_eq!(holds(&keys.watched(), &theirs.claim(claim)), same, "{one} {other}");
                let beside = theirs.beside(Beside::Broken(claim));
                assert_eq!(holds(&keys.watched(), &beside), same, "{one} {other}");
                assert_eq!(keys.read_beside(&beside).is_some(), same);
            }
        }
    }

    #[test]
    fn what_is_beside_no_foreign_client_contends_with() {
        let keys = layout(Names::Raw).keys(&name("jobs/nightly")).unwrap();
        assert_eq!(keys.claims().0, b"p/jobs/nightly/");
        assert_eq!(keys.claims().1, b"p/jobs/nightly0");
        assert!(!holds(&keys.claims(), &keys.beside(Beside::In)));
        assert!(layout(Names::Raw).keys(&name(".leasehold/x")).is_err());
    }

    #[test]
    fn used_names_come_in_byte_order_and_come_back() {
        let layout = layout(Names::Escaped);
        let range = layout.used_range("é", Some(&name("éa")));
        assert!(!holds(&range, &layout.used(&name("éa"))));
        assert!(holds(&range, &layout.used(&name("éa/"))));
        assert!(!holds(&range, &layout.used(&name("f"))));
        let key = layout.used(&name("é/%"));
        assert_eq!(layout.used_name(&key), Some(Ok(name("é/%"))));
    }
}
