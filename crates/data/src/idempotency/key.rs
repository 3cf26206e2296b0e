//! What is asked: a caller's key, the fingerprint of what it came with, the id of one try.

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The longest key and the longest scope, in bytes.
const LONGEST: usize = 255;

/// A key, within the scope of the caller who made it.
///
/// The scope is who calls, as the service itself has found out: a tenant, an account, a user id. Two callers that
/// choose the same key must not be answered with each other's work.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    scope: String,
    key: String,
}

impl Key {
    /// A key of 1 to 255 bytes, in a scope of 1 to 255 bytes.
    ///
    /// # Errors
    ///
    /// [`Error::EmptyKey`], [`Error::KeyTooLong`], [`Error::EmptyScope`], [`Error::ScopeTooLong`], and
    /// [`Error::Nul`] for a NUL character, which PostgreSQL keeps in no text.
    pub fn new(scope: impl Into<String>, key: impl Into<String>) -> Result<Key> {
        let (scope, key) = (scope.into(), key.into());
        match (scope.len(), key.len()) {
            (_, 0) => Err(Error::EmptyKey),
            (_, length) if length > LONGEST => Err(Error::KeyTooLong { length }),
            (0, _) => Err(Error::EmptyScope),
            (length, _) if length > LONGEST => Err(Error::ScopeTooLong { length }),
            _ if key.contains('\0') => Err(Error::Nul { what: "idempotency key" }),
            _ if scope.contains('\0') => Err(Error::Nul { what: "scope" }),
            _ => Ok(Key { scope, key }),
        }
    }

    /// Whose key it is.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// The key itself.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The number of the lock under which PostgreSQL lets one transaction at a time do the work of this key. Should
    /// two keys share one, they wait for each other in vain, and no more.
    pub(super) fn lock_number(&self, table: &str) -> i64 {
        let parts = ["leasehold lock", table, &self.scope, &self.key];
        let [a, b, c, d, e, f, g, h, ..] = digest(parts);
        i64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// A key to pass on for one step of the work: the same at every try, other for every step.
    ///
    /// Shaped like a UUID of version 8 (RFC 9562), which payment providers take. It is made of scope, key and step
    /// alone: also when the key has expired and is used again a provider that still remembers it does not do the
    /// step twice.
    ///
    /// ```
    /// use leasehold_data::idempotency::Key;
    ///
    /// let key = Key::new("tenant-7", "order-41")?;
    /// assert_eq!(key.step("charge"), key.step("charge"));
    /// assert_ne!(key.step("charge"), key.step("refund"));
    /// assert_eq!(key.step("charge").len(), 36);
    /// # Ok::<(), leasehold_data::Error>(())
    /// ```
    pub fn step(&self, step: &str) -> String {
        let parts = [&b"leasehold step"[..], self.scope.as_bytes(), self.key.as_bytes()];
        let digest = digest(parts.into_iter().chain([step.as_bytes()]));
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = digest;
        let version = [g & 0x0f | 0x80, h];
        let variant = [i & 0x3f | 0x80, j];
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let groups = [&[a, b, c, d][..], &[e, f], &version, &variant, &[k, l, m, n, o, p]];
        groups.map(hex).join("-")
    }
}

/// The fingerprint of a payload: the same key with another one is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint (SHA-256) of these parts, in their order; where one part ends and the next begins counts.
    ///
    /// ```
    /// use leasehold_data::idempotency::Fingerprint;
    ///
    /// let paid = Fingerprint::of(["POST", "/pay", r#"{"amount":100}"#]);
    /// assert_eq!(paid, Fingerprint::of(["POST", "/pay", r#"{"amount":100}"#]));
    /// assert_ne!(paid, Fingerprint::of(["POST", "/pay", r#"{"amount":900}"#]));
    /// assert_ne!(Fingerprint::of(["ab", "c"]), Fingerprint::of(["a", "bc"]));
    /// ```
    pub fn of<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Fingerprint {
        Fingerprint(digest(parts))
    }

    /// A fingerprint that was made elsewhere, of a digest that does not collide.
    pub const fn from_bytes(bytes: [u8; 32]) -> Fingerprint {
        Fingerprint(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Fingerprint({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// Names one try to claim, so that a try whose commit was unclear finds its own claim again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TryId([u8; 16]);

impl TryId {
    /// 128 random bits.
    ///
    /// # Errors
    ///
    /// [`Error::NoRandomness`] if the operating system has none.
    pub fn random() -> Result<TryId> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(Error::NoRandomness)?;
        Ok(TryId(bytes))
    }

    /// An id that was made elsewhere. It must be new for each try.
    pub const fn from_bytes(bytes: [u8; 16]) -> TryId {
        TryId(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

fn digest<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        let part = part.as_ref();
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_1_to_255_bytes_and_a_scope() {
        assert!(Key::new("a", "k".repeat(255)).is_ok());
        assert!(matches!(Key::new("a", ""), Err(Error::EmptyKey)));
        assert!(matches!(Key::new("a", "ä".repeat(128)), Err(Error::KeyTooLong { length: 256 })));
        assert!(matches!(Key::new("", "k"), Err(Error::EmptyScope)));
        assert!(matches!(Key::new("s".repeat(256), "k"), Err(Error::ScopeTooLong { length: 256 })));
        assert!(matches!(Key::new("a", "k\0"), Err(Error::Nul { .. })));
        assert!(matches!(Key::new("a\0", "k"), Err(Error::Nul { .. })));
    }

    #[test]
    fn a_step_is_a_uuid_of_version_8_and_stays_the_same() {
        let step = Key::new("tenant-7", "order-41").unwrap().step("charge");
        let groups: Vec<&str> = step.split('-').collect();
        assert_eq!(groups.iter().map(|group| group.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert!(groups[2].starts_with('8'), "{step}");
        assert!(groups[3].starts_with(['8', '9', 'a', 'b']), "{step}");
        // What a provider was told before an upgrade must be told after it.
        assert_eq!(step, "1ad86202-4057-8a9a-b6c8-cdeb3323a46f");
    }

    proptest::proptest! {
        #[test]
        fn no_two_of_scope_key_and_step_share_a_step_key(
            a in ("[a-c]{1,3}", "[a-c]{1,3}", "[a-c]{0,3}"),
            b in ("[a-c]{1,3}", "[a-c]{1,3}", "[a-c]{0,3}"),
        ) {
            let step = |of: &(String, String, String)| {
                Key::new(of.0.clone(), of.1.clone()).unwrap().step(&of.2)
            };
            proptest::prop_assert_eq!(a == b, step(&a) == step(&b));
        }
    }
}
