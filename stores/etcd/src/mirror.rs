//! One resource as the cluster had it at some revision: a value, without I/O and without time.
//!
//! Fed by a snapshot and then by the events of a watch, in the order of revisions. Since the keys
//! before a claim only ever go away, a claim that is admitted at some revision stays so until its
//! own key is gone: what a mirror proves once is true for as long as the key lives.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use leasehold_core::admission::{Walk, free_slots};
use leasehold_core::{ClaimId, Ended, Kind, Mode, Occupant, Previous, Slots, Token};

use crate::keys::{Beside, Keys, claim_id};
use crate::proto::{Event, EventType, KeyValue};
use crate::value::{Contender, End, ago, read_stamp};

/// A contender's key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What stands behind the name's `/`.
    pub(crate) rest: Vec<u8>,
    pub(crate) create: i64,
    pub(crate) modified: i64,
    pub(crate) lease: i64,
    /// `None` for a foreign one.
    pub(crate) ours: Option<(ClaimId, Contender)>,
}

/// What is kept beside the claims.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Memory {
    entered: i64,
    told: i64,
    withdrawn: i64,
    out: Option<End>,
    /// When the slots were last given out.
    slot: i64,
    broken: BTreeSet<ClaimId>,
    /// The last grant that an operator broke, and when.
    broke: Option<(ClaimId, i64)>,
    /// The revisions at which the first three were last written.
    written: [i64; 3],
    used_us: u64,
}

/// See the [module's documentation](self).
#[derive(Debug, Clone)]
pub(crate) struct Mirror {
    keys: Keys,
    revision: i64,
    /// In the order of their making.
    entries: BTreeMap<(i64, Vec<u8>), Entry>,
    made: HashMap<Vec<u8>, i64>,
    memory: Memory,
}

/// Where a claim stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) entry: Entry,
    pub(crate) admitted: bool,
    pub(crate) ahead: u32,
}

impl Entry {
    /// How it stands in others' way: a foreign client knows exclusive locks only.
    pub(crate) fn mode(&self) -> Mode {
        self.ours.as_ref().map_or(Mode::Exclusive, |(_, contender)| contender.mode)
    }

    pub(crate) fn claim(&self) -> Option<ClaimId> {
        self.ours.as_ref().map(|(claim, _)| *claim)
    }

    pub(crate) fn contender(&self) -> Option<&Contender> {
        self.ours.as_ref().map(|(_, contender)| contender)
    }

    /// Its token as far as its key tells: a waiter that was granted by the end of the one before it
    /// writes its token with its first renewal.
    pub(crate) fn token(&self) -> Option<Token> {
        let granted = self.contender().and_then(|contender| contender.granted.as_ref());
        let token = granted.map(|granted| granted.token.or_else(|| token_of(self.modified)));
        token.unwrap_or_else(|| token_of(self.create))
    }

    /// Whether it holds, where it is admitted.
    pub(crate) fn holds(&self, admitted: bool) -> bool {
        let told = self.contender().is_none_or(|c| c.granted.is_some() || !c.by_write());
        admitted && told
    }

    /// Who it is, for people: a foreign key is named as what it is.
    pub(crate) fn label(&self) -> String {
        if let Some(contender) = self.contender() {
            return contender.holder.label().to_owned();
        }
        let rest = String::from_utf8_lossy(&self.rest);
        let shown = leasehold_core::shown(&rest, 60);
        if self.lease == 0 {
            return format!("stray key `{shown}` without a lease: it blocks until it is deleted");
        }
        let (name, key) = rest.rsplit_once('/').unwrap_or(("", &rest));
        let session = i64::from_str_radix(key, 16) == Ok(self.lease);
        let lease = self.lease;
        if !name.is_empty() {
            let name = leasehold_core::shown(name, 60);
            return format!("key of the nested name `…/{name}`, lease {lease:x}");
        }
        if session {
            format!("etcd session {lease:x}")
        } else {
            format!("key `{shown}` of a foreign layout, lease {lease:x}")
        }
    }

    pub(crate) fn occupant(&self) -> Occupant {
        let granted = self.contender().and_then(|contender| contender.granted.as_ref());
        Occupant {
            label: self.label(),
            held_for: granted.map(|granted| ago(granted.since_us)),
            token: if self.ours.is_some() { self.token() } else { None },
        }
    }
}

/// Whether the next contender is admitted. Nobody passes one that may be held back.
fn walk_past(walk: &mut Walk, entry: &Entry) -> bool {
    let admitted = walk.admits(entry.mode());
    if entry.contender().is_some_and(|c| c.careful && c.granted.is_none()) {
        walk.admits(Mode::Exclusive);
    }
    admitted
}

/// A revision as a token.
pub(crate) fn token_of(revision: i64) -> Option<Token> {
    u64::try_from(revision).ok().and_then(Token::new)
}

impl Mirror {
    /// What one transaction has read.
    pub(crate) fn new(
        keys: &Keys,
        revision: i64,
        claims: Vec<KeyValue>,
        beside: Vec<KeyValue>,
    ) -> Mirror {
        let mut mirror = Mirror {
            keys: keys.clone(),
            revision,
            entries: BTreeMap::new(),
            made: HashMap::new(),
            memory: Memory::default(),
        };
        for kv in claims.into_iter().chain(beside) {
            mirror.put(kv);
        }
        mirror
    }

    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// The key of a contender.
    pub(crate) fn key_of(&self, entry: &Entry) -> Vec<u8> {
        let (mut key, _) = self.keys.claims();
        key.extend_from_slice(&entry.rest);
        key
    }

    /// Takes in events; `each` is called after every revision of them.
    pub(crate) fn apply(&mut self, events: Vec<Event>, mut each: impl FnMut(&Mirror)) {
        let mut events = events.into_iter().filter_map(|event| Some((event.kind, event.kv?)));
        let mut next = events.next();
        while let Some((kind, kv)) = next.take() {
            let revision = kv.mod_revision;
            // Older than what a later look has told.
            if revision > self.revision {
                if kind == i32::from(EventType::Delete) {
                    self.delete(&kv.key)
                } else {
                    self.put(kv)
                }
            }
            next = events.next();
            let ends = next.as_ref().is_none_or(|(_, kv)| kv.mod_revision != revision);
            if ends && revision > self.revision {
                self.revision = revision;
                each(self);
            }
        }
    }

    fn put(&mut self, kv: KeyValue) {
        if let Some(rest) = self.keys.contender(&kv.key) {
            let claim = claim_id(rest);
            let ours = claim.zip(Contender::read(&kv.value));
            let entry = Entry {
                rest: rest.to_vec(),
                create: kv.create_revision,
                modified: kv.mod_revision,
                lease: kv.lease,
                ours,
            };
            self.made.insert(entry.rest.clone(), entry.create);
            self.entries.insert((entry.create, entry.rest.clone()), entry);
            return;
        }
        let memory = &mut self.memory;
        match self.keys.read_beside(&kv.key) {
            Some(Beside::In) => {
                memory.entered = kv.version;
                memory.written[0] = kv.mod_revision;
                memory.used_us = memory.used_us.max(read_stamp(&kv.value).unwrap_or_default());
            }
            Some(Beside::Out) => {
                memory.told = kv.version;
                memory.written[1] = kv.mod_revision;
                memory.out = End::read(&kv.value);
                let at = memory.out.as_ref().map_or(0, |end| end.at_us);
                memory.used_us = memory.used_us.max(at);
            }
            Some(Beside::Gone) => {
                memory.withdrawn = kv.version;
                memory.written[2] = kv.mod_revision;
                memory.used_us = memory.used_us.max(read_stamp(&kv.value).unwrap_or_default());
            }
            Some(Beside::Slot) => memory.slot = kv.mod_revision,
            Some(Beside::Broke) => {
                memory.broke = claim_id(&kv.value).map(|claim| (claim, kv.mod_revision));
            }
            Some(Beside::Broken(claim)) => {
                memory.broken.insert(claim);
            }
            None => {}
        }
    }

    fn delete(&mut self, key: &[u8]) {
        if let Some(rest) = self.keys.contender(key) {
            if let Some(create) = self.made.remove(rest) {
                self.entries.remove(&(create, rest.to_vec()));
            }
            return;
        }
        let memory = &mut self.memory;
        match self.keys.read_beside(key) {
            Some(Beside::In) => (memory.entered, memory.written[0]) = (0, 0),
            Some(Beside::Out) => (memory.told, memory.written[1], memory.out) = (0, 0, None),
            Some(Beside::Gone) => (memory.withdrawn, memory.written[2]) = (0, 0),
            Some(Beside::Slot) => memory.slot = 0,
            Some(Beside::Broke) => memory.broke = None,
            Some(Beside::Broken(claim)) => {
                memory.broken.remove(&claim);
            }
            None => {}
        }
    }

    /// The contenders in order, and whether each is admitted.
    pub(crate) fn queue(&self) -> impl Iterator<Item = (&Entry, bool)> {
        let mut walk = Walk::new();
        self.entries.values().map(move |entry| (entry, walk_past(&mut walk, entry)))
    }

    /// Those that are admitted.
    pub(crate) fn admitted(&self) -> Vec<&Entry> {
        let mut walk = Walk::new();
        let mut admitted = Vec::new();
        for entry in self.entries.values() {
            if walk.is_full() {
                break;
            }
            if walk_past(&mut walk, entry) {
                admitted.push(entry);
            }
        }
        admitted
    }

    /// Whether the key of this claim is there.
    pub(crate) fn stands(&self, claim: ClaimId) -> bool {
        self.made.contains_key(claim.to_string().as_bytes())
    }

    /// Those that were made before this revision, the last of them first.
    pub(crate) fn before(&self, create: i64) -> impl Iterator<Item = &Entry> {
        self.entries.range(..(create, Vec::new())).rev().map(|(_, entry)| entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The first contender.
    pub(crate) fn head(&self) -> Option<&Entry> {
        self.entries.values().next()
    }

    /// Where this claim stands, if it does.
    pub(crate) fn standing(&self, claim: ClaimId) -> Option<Standing> {
        let (at, (entry, admitted)) =
            self.queue().enumerate().find(|(_, (entry, _))| entry.claim() == Some(claim))?;
        Some(Standing { entry: entry.clone(), admitted, ahead: u32::try_from(at).unwrap_or(0) })
    }

    /// Whether a claim of this mode at the end of the queue would be admitted.
    pub(crate) fn would_admit(&self, mode: Mode) -> bool {
        let mut walk = Walk::new();
        for entry in self.entries.values() {
            walk_past(&mut walk, entry);
        }
        walk.admits(mode)
    }

    /// What kind the resource is: that of the first of our claims, but for this one.
    pub(crate) fn kind(&self, but: Option<ClaimId>) -> Option<Kind> {
        let ours = self.entries.values().filter(|entry| entry.claim() != but);
        ours.filter_map(Entry::contender).map(|contender| contender.mode.kind()).next()
    }

    /// Whether an operator broke this grant.
    pub(crate) fn is_broken(&self, claim: ClaimId) -> bool {
        self.memory.broken.contains(&claim)
    }

    /// How many claims have ended without a word: their lease ran out, or a hand removed them.
    pub(crate) fn untold(&self) -> i64 {
        let ours = self.entries.values().filter(|entry| entry.ours.is_some()).count();
        let live = i64::try_from(ours).unwrap_or(i64::MAX);
        self.memory.entered - self.memory.told - self.memory.withdrawn - live
    }

    /// How the last grant has ended.
    pub(crate) fn last_end(&self) -> Option<Ended> {
        let base = self.memory.out.as_ref().map_or(0, |end| end.untold);
        if self.untold() > base {
            let broke = self.memory.broke.filter(|(claim, at)| {
                *at > self.memory.written[1] && self.standing(*claim).is_none()
            });
            return Some(if broke.is_some() { Ended::Broken } else { Ended::Expired });
        }
        self.memory.out.as_ref().map(End::how)
    }

    pub(crate) fn previous(&self) -> Previous {
        self.last_end().map_or(Previous::First, Previous::Ended)
    }

    /// What has written that end: the same as long as it is the same end.
    pub(crate) fn end_mark(&self) -> (i64, i64) {
        (self.untold(), self.memory.written[1])
    }

    /// The last end that was told.
    pub(crate) fn out(&self) -> Option<&End> {
        self.memory.out.as_ref()
    }

    /// How this claim ended, if the last end that was told is its.
    pub(crate) fn end_of(&self, claim: ClaimId) -> Option<Ended> {
        self.memory.out.as_ref().filter(|end| end.is_of(claim)).map(End::how)
    }

    /// How long ago the last end was, by wall clocks.
    pub(crate) fn last_end_ago(&self) -> Option<Duration> {
        let base = self.memory.out.as_ref().map_or(0, |end| end.untold);
        let out = self.memory.out.as_ref().filter(|_| self.untold() <= base)?;
        Some(ago(out.at_us))
    }

    /// When the name was last used, by the wall clock of who used it, and the revisions that prove
    /// that nobody has since.
    pub(crate) fn used(&self) -> (u64, [i64; 3]) {
        (self.memory.used_us, self.memory.written)
    }

    /// Free slots for this claim, and the revision at which slots were last given out.
    pub(crate) fn slots_for(&self, claim: ClaimId, mode: Mode) -> Option<(Slots, i64)> {
        let Mode::Permits { count, limit } = mode else {
            return Some((Slots::default(), self.memory.slot));
        };
        let others = self.entries.values().filter(|entry| entry.claim() != Some(claim));
        let taken = others
            .filter_map(Entry::contender)
            .filter_map(|contender| contender.granted.as_ref())
            .flat_map(|granted| granted.slots.as_slice().iter().copied());
        free_slots(count, limit, taken).map(|slots| (slots, self.memory.slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Names;
    use crate::keys::Layout;
    use leasehold_core::{Holder, HolderId, Life, ResourceName};

    fn keys() -> Keys {
        let layout = Layout { prefix: String::new(), names: Names::Escaped };
        layout.keys(&ResourceName::new("r").unwrap()).unwrap()
    }

    fn id(n: u128) -> ClaimId {
        ClaimId::from_bits(n)
    }

    fn kv(key: Vec<u8>, value: Vec<u8>, create: i64, modified: i64, lease: i64) -> KeyValue {
        KeyValue { key, value, create_revision: create, mod_revision: modified, version: 1, lease }
    }

    fn ours(n: u128, mode: Mode, at: i64) -> KeyValue {
        let contender = Contender {
            holder: Holder::new(HolderId::from_bits(n), "h"),
            mode,
            life: Life::Process,
            term: Duration::from_secs(9),
            entered_us: 0,
            careful: false,
            granted: None,
        };
        kv(keys().claim(id(n)), contender.write(), at, at, 77)
    }

    fn event(kind: EventType, kv: KeyValue) -> Event {
        Event { kind: kind.into(), kv: Some(kv) }
    }

    fn gone(n: u128, at: i64) -> Event {
        event(EventType::Delete, kv(keys().claim(id(n)), vec![], 0, at, 0))
    }

    #[test]
    fn the_revision_that_clears_the_way_is_the_token() {
        let first = vec![ours(1, Mode::Exclusive, 5), ours(2, Mode::Exclusive, 6)];
        let mut mirror = Mirror::new(&keys(), 6, first, vec![]);
        assert!(!mirror.standing(id(2)).unwrap().admitted);
        let mut admitted_at = None;
        let events = vec![
            event(EventType::Put, ours(3, Mode::Exclusive, 8)),
            gone(1, 9),
            event(EventType::Put, ours(4, Mode::Exclusive, 11)),
        ];
        mirror.apply(events, |mirror| {
            if admitted_at.is_none() && mirror.standing(id(2)).is_some_and(|s| s.admitted) {
                admitted_at = Some(mirror.revision());
            }
        });
        assert_eq!(admitted_at, Some(9));
        assert_eq!(mirror.revision(), 11);
    }

    #[test]
    fn what_a_later_look_has_told_is_not_taken_back() {
        let mut mirror = Mirror::new(&keys(), 20, vec![ours(2, Mode::Exclusive, 6)], vec![]);
        mirror.apply(vec![event(EventType::Put, ours(1, Mode::Exclusive, 5))], |_| {});
        assert!(mirror.standing(id(2)).unwrap().admitted);
        assert_eq!(mirror.len(), 1);
    }

    #[test]
    fn an_end_without_a_word_is_counted() {
        let beside =
            |what, version| KeyValue { version, ..kv(keys().beside(what), vec![], 1, 1, 0) };
        let all = vec![beside(Beside::In, 3), beside(Beside::Gone, 1)];
        let mut mirror = Mirror::new(
            &keys(),
            9,
            vec![ours(1, Mode::Exclusive, 5), ours(2, Mode::Exclusive, 6)],
            all,
        );
        assert_eq!((mirror.untold(), mirror.previous()), (0, Previous::First));
        mirror.apply(vec![gone(1, 10)], |_| {});
        assert_eq!(mirror.previous(), Previous::Ended(Ended::Expired));
        // The next one tells how it ends, and that it knew of the one before.
        let end = End::new(Ended::Released, id(2), Token::new(10), mirror.untold());
        let out = kv(keys().beside(Beside::Out), end.write(), 11, 11, 0);
        mirror.apply(vec![gone(2, 11), event(EventType::Put, out)], |_| {});
        assert_eq!(mirror.previous(), Previous::Ended(Ended::Released));
        assert_eq!(mirror.end_of(id(2)), Some(Ended::Released));
    }

    #[test]
    fn a_foreign_key_is_exclusive_and_named() {
        let foreign = |rest: &str, lease| {
            let (mut key, _) = keys().claims();
            key.extend_from_slice(rest.as_bytes());
            kv(key, vec![], 3, 3, lease)
        };
        for (rest, lease, part) in [
            ("4d", 0x4d, "etcd session 4d"),
            ("x", 0, "stray key `x`"),
            ("a/b/4d", 0x4d, "nested name `…/a/b`"),
            ("write/17", 0x4d, "nested name"),
            ("host-1", 5, "foreign layout"),
        ] {
            let shared = ours(1, Mode::Shared, 5);
            let mirror = Mirror::new(&keys(), 6, vec![foreign(rest, lease), shared], vec![]);
            assert!(!mirror.standing(id(1)).unwrap().admitted);
            let label = mirror.head().unwrap().label();
            assert!(label.contains(part), "{label}");
        }
    }
}
