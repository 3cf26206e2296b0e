//! The fence in the caller's own etcd transaction.
//!
//! What it means: two marks stand in etcd as keys that end in the mark itself, written so that
//! bytes sort as marks do. [`Fence::enter`] gives what the caller's transaction compares (that no
//! conflicting newer mark is there) and what it does first (leave its own mark, and tidy older
//! ones). Comparison, mark and the caller's own puts are one transaction of etcd's: all or nothing,
//! at one revision.
//!
//! It is plain data, so that it fits every client: each [`Compare`] and [`Op`] is one of etcd's.
//!
//! - [`Fence::enter`]: with the first transaction of a holder, before its first read.
//! - [`Fence::guard`]: with later ones: it raises nothing, and demands that this mark has entered.
//! - [`held`]: for what is kept in *the same cluster as the lock*, the strongest and the simplest: the
//!   lock's own key still stands. A claim's key is used once and never again, so that its presence
//!   says what a comparison with its creation revision says for locks of other clients
//!   ([`created_at`]).
//!
//! ```
//! use leasehold_fence::etcd::{self, Compare, Fence, Op};
//! use leasehold_fence::{Access, Mark, Resource, Token};
//!
//! let fence = Fence::new("app/", &Resource::new("account/7")?);
//! let mine = Mark::from(Token::new(42).unwrap()); // what the lock gave with the lease
//! let mut txn = fence.enter(Access::Exclusive, mine);
//! txn.success.push(Op::Put { key: b"app/balance".to_vec(), value: b"90".to_vec() });
//!
//! // To etcdctl, for a client of your own, one line each:
//! for compare in &txn.compare {
//!     let Compare { key, range_end, revision, is_it } = compare;
//!     assert!(matches!(is_it, etcd::IsIt::Equal), "create_revision of {key:?}..{range_end:?}");
//!     assert_eq!(*revision, 0); // there is none
//! }
//! // If the transaction did not succeed, the keys that its failure branch has read say why:
//! let newer = fence.mark_key(Access::Exclusive, Mark::from(Token::new(43).unwrap()));
//! let refused = fence.refusal(Access::Exclusive, mine, [newer.as_slice()]);
//! assert_eq!(refused.stale_mark().map(|stale| stale.newest.token.get()), Some(43));
//! # Ok::<(), leasehold_fence::Error>(())
//! ```
//!
//! Fairness: none; etcd orders transactions. Cancel safety: a transaction whose answer was lost may
//! have happened; sent again it passes again, for the same mark passes as often as it likes.
//!
//! When not to use it: for what is not in etcd. A check here and a write elsewhere is a race; the fence
//! has to stand where the write lands.

use leasehold_core::{Access, Epoch, Mark, Marks, Token};

use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// A part of a transaction: what is compared, what is done if all of it holds, and what is read if
/// not. The caller adds to it and sends it by a client of its own.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guard {
    /// All of these have to hold.
    pub compare: Vec<Compare>,
    /// What is done then; the caller adds its own.
    pub success: Vec<Op>,
    /// What is read otherwise, for [`Fence::refusal`].
    pub failure: Vec<Op>,
}

/// A comparison of creation revisions: of one key, or of all keys in a range.
///
/// etcd says of a range that it compares if each of its keys does, so that "equal to 0" says that
/// there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The key, or the first of a range.
    pub key: Vec<u8>,
    /// The first key after the range; empty for a single key.
    pub range_end: Vec<u8>,
    /// What the creation revision is compared with.
    pub revision: i64,
    /// How.
    pub is_it: IsIt,
}

/// How a revision is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsIt {
    /// `EQUAL`.
    Equal,
    /// `NOT_EQUAL`.
    NotEqual,
}

/// One operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Puts a key, without a lease.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// Deletes all keys of a range.
    Delete {
        /// The first key.
        key: Vec<u8>,
        /// The first key after the range.
        range_end: Vec<u8>,
    },
    /// Reads the keys of a range, without values.
    Keys {
        /// The first key.
        key: Vec<u8>,
        /// The first key after the range.
        range_end: Vec<u8>,
    },
}

/// The lock's own key is still there: a claim's key stands for as long as the claim does, and is
/// never used again. [`claim_key`] of the store tells it.
///
/// [`claim_key`]: https://docs.rs/leasehold-etcd
pub fn held(claim_key: impl Into<Vec<u8>>) -> Compare {
    Compare { key: claim_key.into(), range_end: vec![], revision: 0, is_it: IsIt::NotEqual }
}

/// The lock's key is the one that was made at this revision: the fence for locks of Go's
/// `concurrency.Mutex`, whose keys are used again.
pub fn created_at(key: impl Into<Vec<u8>>, revision: i64) -> Compare {
    Compare { key: key.into(), range_end: vec![], revision, is_it: IsIt::Equal }
}

/// The marks of one resource, by their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    base: String,
    of: Resource,
}

impl Fence {
    /// The marks of this resource stand under `PREFIX.leasehold-fence/`.
    pub fn new(prefix: &str, of: &Resource) -> Fence {
        let name = of.name().escaped(b"");
        let slot = of.slot_number().map(|slot| format!("/{slot}")).unwrap_or_default();
        Fence { base: format!("{prefix}.leasehold-fence/{name}{slot}/"), of: of.clone() }
    }

    /// Lets an access pass unless a conflicting newer mark is there, and leaves its own.
    pub fn enter(&self, access: Access, mark: Mark) -> Guard {
        let own = self.mark_key(access, mark);
        let older = Op::Delete { key: self.first(access), range_end: own.clone() };
        let put = Op::Put { key: own, value: vec![] };
        Guard {
            compare: self.none_newer(access, mark),
            success: vec![older, put],
            failure: self.look(),
        }
    }

    /// Lets an access pass whose mark has entered and is still the newest; raises nothing.
    pub fn guard(&self, access: Access, mark: Mark) -> Guard {
        let mut compare = self.none_newer(access, mark);
        // Older marks of its own access are tidied away, but not by others that are there together.
        if access == Access::Exclusive {
            compare.push(held(self.mark_key(access, mark)));
        }
        Guard { compare, success: vec![], failure: self.look() }
    }

    /// What reads both marks.
    pub fn look(&self) -> Vec<Op> {
        let key = self.base.clone().into_bytes();
        vec![Op::Keys { range_end: end_of(&key), key }]
    }

    /// The marks, from the keys that [`Fence::look`] has found.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for a key that is no mark: then nothing passes.
    pub fn marks<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) -> Result<Marks> {
        let mut marks = Marks::default();
        for key in keys {
            let (access, mark) = self.read(key).ok_or_else(|| {
                let key = String::from_utf8_lossy(key).into_owned();
                let text =
                    format!("read the marks of {} in etcd: the key {key:?} is none", self.of);
                Error::new(ErrorKind::Corrupt, text)
            })?;
            let own = match access {
                Access::Exclusive => &mut marks.exclusive,
                Access::Shared => &mut marks.shared,
            };
            *own = (*own).max(Some(mark));
        }
        Ok(marks)
    }

    /// Why a transaction did not succeed, from the keys that its failure branch has read.
    pub fn refusal<'k>(
        &self,
        access: Access,
        mark: Mark,
        keys: impl IntoIterator<Item = &'k [u8]>,
    ) -> Error {
        let doing = format!("enter {} in etcd", self.of);
        let marks = match self.marks(keys) {
            Ok(marks) => marks,
            Err(error) => return error,
        };
        match marks.admit(access, mark) {
            Err(stale) => Error::stale(&doing, stale),
            Ok(_) => {
                let text = format!(
                    "{doing}: token {mark} has not entered, or another comparison of the \
                     transaction did not hold"
                );
                Error::new(ErrorKind::NotEntered, text)
            }
        }
    }

    /// The key of a mark.
    pub fn mark_key(&self, access: Access, mark: Mark) -> Vec<u8> {
        let word = word(access);
        let (epoch, token) = (mark.epoch.0, mark.token.get());
        format!("{}{word}/{epoch:08x}:{token:016x}", self.base).into_bytes()
    }

    fn first(&self, access: Access) -> Vec<u8> {
        format!("{}{}/", self.base, word(access)).into_bytes()
    }

    /// No mark newer than this one that conflicts.
    fn none_newer(&self, access: Access, mark: Mark) -> Vec<Compare> {
        let against: &[Access] = match access {
            Access::Exclusive => &[Access::Exclusive, Access::Shared],
            Access::Shared => &[Access::Exclusive],
        };
        let none = |kind: &Access| {
            let mut after = self.mark_key(*kind, mark);
            after.push(0);
            let range_end = end_of(&self.first(*kind));
            Compare { key: after, range_end, revision: 0, is_it: IsIt::Equal }
        };
        against.iter().map(none).collect()
    }

    fn read(&self, key: &[u8]) -> Option<(Access, Mark)> {
        let rest = std::str::from_utf8(key.strip_prefix(self.base.as_bytes())?).ok()?;
        let (kind, mark) = rest.split_once('/')?;
        let access = [Access::Exclusive, Access::Shared].into_iter().find(|a| word(*a) == kind)?;
        let (epoch, token) = mark.split_once(':')?;
        if epoch.len() != 8 || token.len() != 16 {
            return None;
        }
        let epoch = Epoch(u32::from_str_radix(epoch, 16).ok()?);
        let token = Token::new(u64::from_str_radix(token, 16).ok()?)?;
        let mark = Mark { epoch, token };
        (self.mark_key(access, mark) == key).then_some((access, mark))
    }
}

fn word(access: Access) -> &'static str {
    match access {
        Access::Exclusive => "exclusive",
        Access::Shared => "shared",
    }
}

/// The first key that does not begin with these bytes, which end in `/`.
fn end_of(first: &[u8]) -> Vec<u8> {
    let mut end = first.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn at(n: u64) -> Mark {
        Mark::from(Token::new(n).unwrap())
    }

    /// etcd's keys, as far as this fence goes.
    #[derive(Default)]
    struct Keys(BTreeSet<Vec<u8>>);

    impl Keys {
        fn range(&self, key: &[u8], end: &[u8]) -> Vec<Vec<u8>> {
            let keys = self.0.iter().filter(|k| {
                if end.is_empty() {
                    k.as_slice() == key
                } else {
                    *k.as_slice() >= *key && k.as_slice() < end
                }
            });
            keys.cloned().collect()
        }

        fn run(&mut self, guard: &Guard) -> bool {
            let holds = guard.compare.iter().all(|c| {
                let there = !self.range(&c.key, &c.range_end).is_empty();
                there == (c.is_it == IsIt::NotEqual)
            });
            for op in if holds { &guard.success } else { &guard.failure } {
                match op {
                    Op::Put { key, .. } => drop(self.0.insert(key.clone())),
                    Op::Delete { key, range_end } => {
                        for key in self.range(key, range_end) {
                            self.0.remove(&key);
                        }
                    }
                    Op::Keys { .. } => {}
                }
            }
            holds
        }
    }

    proptest! {
        #[test]
        fn it_lets_in_what_two_marks_let_in(
            accesses in proptest::collection::vec((any::<bool>(), 0..3_u32, 1..20_u64), 1..40),
        ) {
            let fence = Fence::new("p/", &Resource::slot("a/b", 1).unwrap());
            let mut keys = Keys::default();
            let mut marks = Marks::default();
            for (exclusive, epoch, n) in accesses {
                let access = if exclusive { Access::Exclusive } else { Access::Shared };
                let mark = Mark { epoch: Epoch(epoch), ..at(n) };
                let passed = keys.run(&fence.enter(access, mark));
                match marks.admit(access, mark) {
                    Ok(raised) => {
                        prop_assert!(passed);
                        marks = raised;
                        prop_assert!(keys.run(&fence.guard(access, mark)));
                    }
                    Err(stale) => {
                        prop_assert!(!passed && !keys.run(&fence.guard(access, mark)));
                        let found = keys.0.iter().map(Vec::as_slice);
                        let refused = fence.refusal(access, mark, found);
                        prop_assert_eq!(refused.stale_mark(), Some(stale));
                    }
                }
                let found = fence.marks(keys.0.iter().map(Vec::as_slice));
                prop_assert_eq!(found.unwrap(), marks);
            }
        }
    }

    #[test]
    fn a_guard_demands_that_it_has_entered() {
        let fence = Fence::new("", &Resource::new("r").unwrap());
        let mut keys = Keys::default();
        let guard = fence.guard(Access::Exclusive, at(3));
        assert!(!keys.run(&guard));
        assert_eq!(fence.refusal(Access::Exclusive, at(3), []).kind(), ErrorKind::NotEntered);
        assert!(keys.run(&fence.enter(Access::Exclusive, at(3))));
        assert!(keys.run(&guard));
    }

    #[test]
    fn resources_and_slots_do_not_meet() {
        let names = ["a", "a/1", "a/exclusive"].map(|n| Resource::new(n).unwrap());
        let all = names.into_iter().chain([Resource::slot("a", 1).unwrap()]);
        let bases: BTreeSet<String> = all.map(|of| Fence::new("", &of).base).collect();
        assert_eq!(bases.len(), 4);
        let fence = Fence::new("", &Resource::new("a").unwrap());
        let slot = Fence::new("", &Resource::slot("a", 1).unwrap());
        let theirs = slot.mark_key(Access::Shared, at(1));
        let entered = fence.enter(Access::Exclusive, at(1));
        let mut keys = Keys::default();
        keys.0.insert(theirs);
        assert!(keys.run(&entered));
    }

    #[test]
    fn a_key_that_is_no_mark_lets_nothing_pass() {
        let fence = Fence::new("", &Resource::new("r").unwrap());
        let key = format!("{}exclusive/zz", fence.base);
        let error = fence.marks([key.as_bytes()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
