//! Paths, and the names by which contenders know each other.

use leasehold_core::{ClaimId, Mode, ResourceName};

use crate::config::{Layout, Naming};

/// What lies beside the locks: memory of ends, marks of claims, records.
pub(crate) const OWN: &str = ".leasehold";
/// The record, among the marks of a resource.
pub(crate) const RECORD: &str = "record";
/// A slot that is taken begins so, among the marks of a resource.
pub(crate) const SLOT: &str = "slot-";

/// The nodes of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths {
    /// Holds the contenders and nothing else.
    pub(crate) queue: String,
    /// Remembers how the last grant ended; below it a mark a claim, the slots and the record.
    pub(crate) memory: String,
}

impl Paths {
    /// The nodes of a resource below `root`.
    ///
    /// # Errors
    ///
    /// In words, for a name that cannot be said raw.
    pub(crate) fn of(root: &str, naming: Naming, name: &ResourceName) -> Result<Paths, String> {
        let escaped = escape(name);
        let queue = match naming {
            Naming::Escaped => format!("{root}/{escaped}"),
            Naming::Raw => {
                let path = format!("{root}/{}", name.as_str());
                check_path(&path)?;
                if name.as_str().split('/').any(|part| part == OWN) {
                    return Err(format!("`{OWN}` is leasehold's own"));
                }
                path
            }
        };
        Ok(Paths { queue, memory: format!("{root}/{OWN}/{escaped}") })
    }

    /// The mark of a claim: made with its contender and removed with it.
    pub(crate) fn mark(&self, claim: ClaimId) -> String {
        format!("{}/{claim}", self.memory)
    }

    pub(crate) fn record(&self) -> String {
        format!("{}/{RECORD}", self.memory)
    }

    pub(crate) fn slot(&self, number: u32) -> String {
        format!("{}/{SLOT}{number}", self.memory)
    }
}

/// A name as one node. Injective; never `.`, `..` or what begins with a dot.
pub(crate) fn escape(name: &ResourceName) -> String {
    let escaped = name.escaped(b".:@+=,~");
    match escaped.strip_prefix('.') {
        Some(rest) => format!("%2E{rest}"),
        None => escaped,
    }
}

/// Reads what [`escape`] wrote, and nothing else.
pub(crate) fn unescape(node: &str) -> Option<ResourceName> {
    let name = ResourceName::unescape(node).ok()?;
    (escape(&name) == node).then_some(name)
}

/// Says what keeps this from being a path of ZooKeeper.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let Some(rest) = path.strip_prefix('/') else {
        return if path.is_empty() { Ok(()) } else { Err("it does not begin with /".into()) };
    };
    for part in rest.split('/') {
        match part {
            "" => return Err("it has an empty part".into()),
            "." | ".." => return Err(format!("`{part}` is no part of a path")),
            _ => {}
        }
    }
    // The server looks at UTF-16: what needs two of its units is unfit too.
    let unfit = |c: char| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..);
    match path.chars().find(|&c| unfit(c)) {
        Some(c) => Err(format!("it has the character U+{:04X}", u32::from(c))),
        None if rest.split('/').next() == Some("zookeeper") => {
            Err("`/zookeeper` is ZooKeeper's own".into())
        }
        None => Ok(()),
    }
}

/// A contender as its name tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    /// Where it stands; see [`Contender::ties`] for what that does not tell.
    pub(crate) sequence: i64,
    /// From its uuid, where it has one as Curator and we write it.
    pub(crate) claim: Option<ClaimId>,
    /// Whether clients of this layout see where it stands.
    pub(crate) sorts: bool,
}

const DIGITS: usize = 10;
const READ: &str = "__READ__";
const WRITE: &str = "__WRIT__";
const PERMIT: &str = "__PERMIT_";
const MUTEX: &str = "lock-";
const KAZOO_READ: &str = "__rlock__";

/// The name of a contender up to its number.
pub(crate) fn stem(claim: ClaimId, mode: Mode, layout: Layout) -> String {
    let tail = match layout {
        Layout::Mutex => MUTEX,
        Layout::ReadWrite => WRITE,
    };
    let prefix = protected(claim);
    match (mode, layout) {
        (Mode::Exclusive, _) => format!("{prefix}{tail}"),
        (Mode::Shared, Layout::ReadWrite) => format!("{prefix}{READ}"),
        (Mode::Shared, Layout::Mutex) => format!("{prefix}{READ}-{tail}"),
        (Mode::Permits { count, limit }, _) => {
            format!("{prefix}{PERMIT}{count}_{limit}__-{tail}")
        }
    }
}

/// What the contender of a claim begins with: Curator's protection, with the claim's id as the
/// uuid.
pub(crate) fn protected(claim: ClaimId) -> String {
    let id = claim.to_string();
    let part = |from: usize, to: usize| id.get(from..to).unwrap_or_default();
    format!("_c_{}-{}-{}-{}-{}-", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

impl Contender {
    /// Reads the name of a child of a queue; `None` if it has no number and so no place.
    pub(crate) fn parse(name: &str, layout: Layout) -> Option<Contender> {
        let (stem, digits) = name.split_at_checked(name.len().checked_sub(DIGITS)?)?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let number: i64 = digits.parse().ok()?;
        let negative = stem.ends_with("--") || stem.ends_with("__-");
        let (stem, sequence) = match stem.strip_suffix('-') {
            Some(stem) if negative => (stem, -number),
            _ => (stem, number),
        };
        let mode = if stem.contains(READ) || stem.contains(KAZOO_READ) {
            Mode::Shared
        } else {
            permits(stem).unwrap_or(Mode::Exclusive)
        };
        let sorts = match layout {
            Layout::Mutex => stem.ends_with(MUTEX),
            Layout::ReadWrite => stem.ends_with(READ) || stem.ends_with(WRITE),
        };
        Some(Contender { name: name.into(), mode, sequence, claim: claim_of(stem), sorts })
    }

    /// Whether numbers alone do not order these: two are alike, or the counter has overflowed.
    /// `sorted` is in order of their numbers.
    pub(crate) fn ties(sorted: &[Contender]) -> bool {
        let ends = [sorted.first(), sorted.last()];
        let over = ends.iter().flatten().any(|c| Contender::overflowed(c.sequence));
        over || sorted.windows(2).any(|two| two[0].sequence == two[1].sequence)
    }

    /// The counter of a parent stops at 2^31 - 1, or goes on below zero.
    pub(crate) fn overflowed(sequence: i64) -> bool {
        sequence < 0 || sequence >= i64::from(i32::MAX)
    }
}

fn permits(stem: &str) -> Option<Mode> {
    let (_, rest) = stem.split_once(PERMIT)?;
    let (count, rest) = rest.split_once('_')?;
    let (limit, _) = rest.split_once("__")?;
    let mode = Mode::Permits { count: count.parse().ok()?, limit: limit.parse().ok()? };
    mode.is_valid().then_some(mode)
}

fn claim_of(stem: &str) -> Option<ClaimId> {
    let uuid = stem.strip_prefix("_c_")?.get(..36)?;
    let id: String = uuid.split('-').collect();
    let claim: ClaimId = id.parse().ok()?;
    stem.starts_with(&protected(claim)).then_some(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (1..5_u32, 5..9_u32).prop_map(|(count, limit)| Mode::Permits { count, limit }),
        ]
    }

    proptest! {
        #[test]
        fn our_names_are_read_back(bits: u128, mode in mode(), number: i32, write in any::<bool>()) {
            let layout = if write { Layout::ReadWrite } else { Layout::Mutex };
            // As the server formats it; numbers below zero begin at -2^31.
            let number = if number < 0 { i32::MIN + (number & 0xffff) } else { number };
            let claim = ClaimId::from_bits(bits);
            let name = format!("{}{number:010}", stem(claim, mode, layout));
            let read = Contender::parse(&name, layout);
            let expected = Contender {
                name,
                mode,
                sequence: number.into(),
                claim: Some(claim),
                sorts: true,
            };
            prop_assert_eq!(read, Some(expected));
        }

        #[test]
        fn no_name_makes_it_panic(name in ".{0,60}") {
            let _ = Contender::parse(&name, Layout::Mutex);
            let _ = Contender::parse(&format!("{name}0000000001"), Layout::ReadWrite);
        }

        #[test]
        fn escapes_are_injective_and_fit(name in "[^\\p{Cc}]{1,20}") {
            let name = ResourceName::new(&name).unwrap();
            let node = escape(&name);
            prop_assert_eq!(unescape(&node), Some(name));
            let path = format!("/{node}");
            prop_assert!(check_path(&path).is_ok(), "{}", path);
            prop_assert!(!node.contains('/') && !node.starts_with('.'));
        }
    }

    #[test]
    fn foreign_names_are_known_by_what_they_exclude() {
        let of = |name: &str| Contender::parse(name, Layout::Mutex).map(|c| (c.mode, c.sorts));
        let hex = "0123456789abcdef0123456789abcdef";
        let uuid = "11111111-2222-3333-4444-555555555555";
        assert_eq!(of(&format!("_c_{uuid}-lock-0000000007")), Some((Mode::Exclusive, true)));
        assert_eq!(of(&format!("_c_{hex}-lock-0000000007")), Some((Mode::Exclusive, true)));
        assert_eq!(of(&format!("{hex}__lock__0000000007")), Some((Mode::Exclusive, false)));
        assert_eq!(of(&format!("{hex}__rlock__0000000007")), Some((Mode::Shared, false)));
        assert_eq!(of("x-144115-0000000007"), Some((Mode::Exclusive, false)));
        assert_eq!(of("lock-é00000007"), None);
        assert_eq!(of("é0000000001").map(|found| found.1), Some(false));
        assert_eq!(of("notes"), None);
        let read = format!("_c_{uuid}-__READ__0000000007");
        let read = Contender::parse(&read, Layout::ReadWrite).unwrap();
        assert_eq!((read.mode, read.sorts), (Mode::Shared, true));
    }

    #[test]
    fn raw_names_are_paths_or_refused() {
        let raw = |name: &str| {
            Paths::of("/a", Naming::Raw, &ResourceName::new(name).unwrap()).map(|p| p.queue)
        };
        assert_eq!(raw("b/c d"), Ok("/a/b/c d".into()));
        for name in ["/b", "b/", "b//c", ".", "b/..", "b/.leasehold", "\u{f8ff}", "💥"] {
            assert!(raw(name).is_err(), "{name}");
        }
        let paths = Paths::of("", Naming::Escaped, &ResourceName::new(".").unwrap()).unwrap();
        assert_eq!(paths.queue, "/%2E");
    }
}
