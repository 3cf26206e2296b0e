//! The fence in the caller's own ZooKeeper transaction.
//!
//! What it means: both marks stand in one node. The caller reads it, and [`Fence::enter`] says which
//! operation its own `multi` must begin with: one that raises the mark, or proves that it stands,
//! at the version that was read. Mark and the caller's own writes are one transaction of
//! ZooKeeper's: all or nothing. Refused with `BadVersion`, `NodeExists` or `NoNode` at that
//! operation, another has been there since: read again, and ask again.
//!
//! It is plain data, so that it fits every client: each [`Op`] is one of ZooKeeper's.
//!
//! - [`Fence::enter`]: with the first transaction of a holder, before its first read.
//! - [`Fence::guard`]: with later ones: it raises nothing, and demands that this mark has entered.
//! - [`held`]: for what is kept in *the same ensemble as the lock*, the strongest and the simplest:
//!   the lock's own node still stands. Its name is used once and never again.
//!
//! ```
//! use leasehold_fence::zookeeper::{Fence, Op};
//! use leasehold_fence::{Access, Mark, Resource, Token};
//!
//! let fence = Fence::new("/app", &Resource::new("account/7")?);
//! let mine = Mark::from(Token::new(42).unwrap()); // what the lock gave with the lease
//! // What `getData(fence.path())` gave: nothing at first, later its data and version.
//! let first = fence.enter(Access::Exclusive, mine, None)?;
//! let Op::Create { path, data } = first else { panic!("there was nothing") };
//! assert_eq!(path, fence.path()); // its parents are to be made before
//! // Later a holder with an older token asks:
//! let late = Mark::from(Token::new(41).unwrap());
//! let refused = fence.enter(Access::Exclusive, late, Some((&data, 0))).unwrap_err();
//! assert_eq!(refused.stale_mark().map(|stale| stale.newest.token.get()), Some(42));
//! # Ok::<(), leasehold_fence::Error>(())
//! ```
//!
//! Fairness: none; ZooKeeper orders transactions. Cancel safety: a transaction whose answer was lost
//! may have happened; asked for again after another read it passes again, for the same mark passes
//! as often as it likes.
//!
//! When not to use it: for what is not in ZooKeeper. A check here and a write elsewhere is a race; the
//! fence has to stand where the write lands.

use leasehold_core::{Access, Epoch, Mark, Marks, Token};

use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// One operation of a `multi`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes a persistent node that is not there.
    Create {
        /// Its path; the parents are there.
        path: String,
        /// Its data.
        data: Vec<u8>,
    },
    /// Sets the data of a node of this version.
    Set {
        /// Its path.
        path: String,
        /// Its new data.
        data: Vec<u8>,
        /// The version that was read.
        version: i32,
    },
    /// Demands that a node is there, of this version; -1 for any.
    Check {
        /// Its path.
        path: String,
        /// The version that was read.
        version: i32,
    },
}

/// The lock's own node is still there: it stands for as long as its claim does, and its name is
/// never used again. The store's `node` tells its path.
pub fn held(node: impl Into<String>) -> Op {
    Op::Check { path: node.into(), version: -1 }
}

/// The marks of one resource, in one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fence {
    path: String,
    of: Resource,
}

impl Fence {
    /// The marks of this resource stand in a node below `ROOT/.leasehold-fence`.
    pub fn new(root: &str, of: &Resource) -> Fence {
        let root = root.trim_end_matches('/');
        // Neither `.` nor `..` nor a `/` is left in it.
        let name = of.name().escaped(b"");
        let slot = of.slot_number().map(|slot| format!("%{slot}")).unwrap_or_default();
        Fence { path: format!("{root}/.leasehold-fence/{name}{slot}"), of: of.clone() }
    }

    /// The node, whose data and version are to be read first.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Lets an access pass unless a conflicting newer mark is in what was `seen`: the node's data
    /// and version, or nothing if it is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Stale`], or [`ErrorKind::Corrupt`] for data that is no marks: then nothing passes.
    pub fn enter(&self, access: Access, mark: Mark, seen: Option<(&[u8], i32)>) -> Result<Op> {
        let path = self.path.clone();
        let Some((data, version)) = seen else {
            let raised = self.admit(Marks::default(), access, mark)?;
            return Ok(Op::Create { path, data: write(raised) });
        };
        let marks = self.marks(data)?;
        let raised = self.admit(marks, access, mark)?;
        Ok(if raised == marks {
            Op::Check { path, version }
        } else {
            Op::Set { path, data: write(raised), version }
        })
    }

    /// Lets an access pass whose mark has entered and is still the newest; raises nothing.
    ///
    /// # Errors
    ///
    /// As [`Fence::enter`], and [`ErrorKind::NotEntered`].
    pub fn guard(&self, access: Access, mark: Mark, seen: Option<(&[u8], i32)>) -> Result<Op> {
        match self.enter(access, mark, seen)? {
            check @ Op::Check { .. } => Ok(check),
            _ => {
                let text = format!("pass {} in ZooKeeper: token {mark} has not entered", self.of);
                Err(Error::new(ErrorKind::NotEntered, text))
            }
        }
    }

    /// The marks in the node's data.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for data that is no marks.
    pub fn marks(&self, data: &[u8]) -> Result<Marks> {
        read(data).ok_or_else(|| {
            let text =
                format!("read the marks of {} in ZooKeeper: {} holds none", self.of, self.path);
            Error::new(ErrorKind::Corrupt, text)
        })
    }

    fn admit(&self, marks: Marks, access: Access, mark: Mark) -> Result<Marks> {
        let doing = || format!("enter {} in ZooKeeper", self.of);
        marks.admit(access, mark).map_err(|stale| Error::stale(&doing(), stale))
    }
}

/// Two lines that people can read: `exclusive EPOCH:TOKEN`, `shared -`.
fn write(marks: Marks) -> Vec<u8> {
    let text = |mark: Option<Mark>| match mark {
        Some(mark) => format!("{}:{}", mark.epoch.0, mark.token.get()),
        None => "-".to_owned(),
    };
    format!("exclusive {}\nshared {}\n", text(marks.exclusive), text(marks.shared)).into_bytes()
}

fn read(data: &[u8]) -> Option<Marks> {
    let text = std::str::from_utf8(data).ok()?;
    let (first, rest) = text.split_once('\n')?;
    let exclusive = mark(first.strip_prefix("exclusive ")?)?;
    let shared = mark(rest.strip_prefix("shared ")?.strip_suffix('\n')?)?;
    let marks = Marks { exclusive, shared };
    (write(marks) == data).then_some(marks)
}

fn mark(text: &str) -> Option<Option<Mark>> {
    if text == "-" {
        return Some(None);
    }
    let (epoch, token) = text.split_once(':')?;
    let token = Token::new(token.parse().ok()?)?;
    Some(Some(Mark { epoch: Epoch(epoch.parse().ok()?), token }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn at(n: u64) -> Mark {
        Mark::from(Token::new(n).unwrap())
    }

    /// ZooKeeper's node, as far as this fence goes.
    #[derive(Default)]
    struct Node(Option<(Vec<u8>, i32)>);

    impl Node {
        fn seen(&self) -> Option<(&[u8], i32)> {
            self.0.as_ref().map(|(data, version)| (data.as_slice(), *version))
        }

        fn run(&mut self, op: Op) -> bool {
            let holds = match (&op, &self.0) {
                (Op::Create { .. }, found) => found.is_none(),
                (Op::Set { version, .. } | Op::Check { version, .. }, Some((_, now))) => {
                    version == now
                }
                (Op::Set { .. } | Op::Check { .. }, None) => false,
            };
            if holds {
                match op {
                    Op::Create { data, .. } => self.0 = Some((data, 0)),
                    Op::Set { data, version, .. } => self.0 = Some((data, version + 1)),
                    Op::Check { .. } => {}
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
            let fence = Fence::new("/p", &Resource::slot("a/b", 1).unwrap());
            let mut node = Node::default();
            let mut marks = Marks::default();
            for (exclusive, epoch, n) in accesses {
                let access = if exclusive { Access::Exclusive } else { Access::Shared };
                let mark = Mark { epoch: Epoch(epoch), ..at(n) };
                let asked = fence.enter(access, mark, node.seen());
                match marks.admit(access, mark) {
                    Ok(raised) => {
                        prop_assert!(node.run(asked.unwrap()));
                        marks = raised;
                    }
                    Err(stale) => prop_assert_eq!(asked.unwrap_err().stale_mark(), Some(stale)),
                }
                if let Some((data, _)) = node.seen() {
                    prop_assert_eq!(fence.marks(data).unwrap(), marks);
                }
            }
        }

        #[test]
        fn what_was_read_before_another_came_raises_nothing(first in 1..20_u64, second in 1..20_u64) {
            let fence = Fence::new("", &Resource::new("r").unwrap());
            for before in [0, 1] {
                let mut node = Node::default();
                if before == 1 {
                    prop_assert!(node.run(fence.enter(Access::Shared, at(1), None).unwrap()));
                }
                let late = fence.enter(Access::Exclusive, at(first), node.seen()).unwrap();
                let raced = fence.enter(Access::Exclusive, at(second), node.seen()).unwrap();
                let changes = !matches!(raced, Op::Check { .. });
                prop_assert!(node.run(raced));
                prop_assert!(!(changes && node.run(late)), "it was judged by what is past");
            }
        }
    }

    #[test]
    fn a_guard_demands_that_it_has_entered() {
        let fence = Fence::new("", &Resource::new("r").unwrap());
        let mut node = Node::default();
        let kind = |asked: Result<Op>| asked.unwrap_err().kind();
        assert_eq!(kind(fence.guard(Access::Exclusive, at(3), None)), ErrorKind::NotEntered);
        assert!(node.run(fence.enter(Access::Exclusive, at(3), None).unwrap()));
        assert!(node.run(fence.guard(Access::Exclusive, at(3), node.seen()).unwrap()));
        let newer = fence.guard(Access::Exclusive, at(4), node.seen());
        assert_eq!(kind(newer), ErrorKind::NotEntered);
    }

    #[test]
    fn data_that_is_no_marks_lets_nothing_pass() {
        let fence = Fence::new("", &Resource::new("r").unwrap());
        for data in
            ["", "exclusive 0:1", "exclusive 0:1\nshared -", "exclusive 0:0\nshared -\n", "x"]
        {
            let error = fence.enter(Access::Shared, at(9), Some((data.as_bytes(), 0))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{data}");
        }
    }

    #[test]
    fn resources_and_slots_do_not_meet() {
        let names = ["a", "a%1", "a/1", ".", ".."].map(|n| Resource::new(n).unwrap());
        let all = names.into_iter().chain([Resource::slot("a", 1).unwrap()]);
        let paths: BTreeSet<String> = all.map(|of| Fence::new("/", &of).path).collect();
        assert_eq!(paths.len(), 6);
        assert!(paths.iter().all(|path| path.matches('/').count() == 2), "{paths:?}");
    }
}
