//! A run: the right to do the work of a key, and to finish it.

use leasehold_core::Token;

use super::{Fingerprint, Key, TryId};

/// The right to do the work of a key once. It ends when the run finishes, or when another takes over because this
/// one was silent for a whole term; then it can finish no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    pub(super) key: Key,
    pub(super) fingerprint: Fingerprint,
    pub(super) id: TryId,
    pub(super) token: Token,
    pub(super) attempt: u32,
    pub(super) point: Option<RecoveryPoint>,
}

/// How far earlier tries have come, where the work is not all in one transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveryPoint {
    /// What is behind us: `charged`.
    pub name: String,
    /// What the rest of the work needs: the id of the charge.
    pub state: Vec<u8>,
}

impl Run {
    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fingerprint of the payload.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// The id of the try that began it.
    pub fn id(&self) -> TryId {
        self.id
    }

    /// Its fencing token, higher than that of each run of this key before it.
    pub fn token(&self) -> Token {
        self.token
    }

    /// 1 for the first run of this key, one more for each that took over.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Where to go on, if an earlier run has come that far.
    pub fn recovery_point(&self) -> Option<&RecoveryPoint> {
        self.point.as_ref()
    }

    /// The key to pass on for one step: see [`Key::step`].
    pub fn step(&self, step: &str) -> String {
        self.key.step(step)
    }
}
