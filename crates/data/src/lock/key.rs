//! How a name becomes what the database locks.

use leasehold_core::ResourceName;
use sha2::{Digest, Sha256};

use super::Result;

/// What PostgreSQL's advisory locks are taken on: 64 bits, in one database.
///
/// Made of a name, it is the beginning of the name's SHA-256, so that others can take the same lock:
///
/// ```sql
/// SELECT pg_advisory_xact_lock(('x' || left(encode(sha256('nightly'), 'hex'), 16))::bit(64)::bigint);
/// ```
///
/// PostgreSQL keeps the key alone, so that two names of one key are one lock: they exclude each
/// other without need, and never the reverse. Of a million names two have the same key with a
/// chance of one in 37 million. A program that locks another name under the lock it has may then
/// wait for itself, until its bound. A row lock knows the whole name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    number: i64,
    shown: String,
}

impl Key {
    /// The key of a name.
    ///
    /// # Errors
    ///
    /// [`Error::Name`](super::Error::Name) for one that is empty, longer than 512 bytes, or holds a
    /// control character.
    pub fn new(name: &str) -> Result<Key> {
        let name = ResourceName::new(name)?;
        let digest = Sha256::digest(name.as_str().as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Ok(Key { number: i64::from_be_bytes(first), shown: name.as_str().to_owned() })
    }

    /// The key that a program already uses, to share its locks.
    pub fn from_number(number: i64) -> Key {
        Key { number, shown: number.to_string() }
    }

    /// The key as PostgreSQL knows it.
    pub fn number(&self) -> i64 {
        self.number
    }

    /// The name it was made of, or its number.
    pub fn shown(&self) -> &str {
        &self.shown
    }
}

/// What GET_LOCK is called with: always 58 bytes in lower case, as MySQL takes 64 at most and does
/// not tell cases apart, where MariaDB takes 192 and does.
#[cfg(feature = "mysql_async-0_37")]
pub(super) fn user_lock(name: &ResourceName) -> String {
    use std::fmt::Write as _;

    let mut text = String::from("leasehold:");
    for byte in &Sha256::digest(name.as_str().as_bytes())[..24] {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_beginning_of_the_hash() {
        let key = Key::new("nightly").unwrap();
        let digest = Sha256::digest(b"nightly");
        assert_eq!(key.number().to_be_bytes(), digest[..8]);
        assert_ne!(key, Key::new("Nightly").unwrap());
        assert_eq!(Key::from_number(-7).shown(), "-7");
        assert!(Key::new("").is_err());
    }

    #[test]
    #[cfg(feature = "mysql_async-0_37")]
    fn a_user_lock_has_one_length_and_no_capitals() {
        for name in ["a", &"Ä".repeat(256)] {
            let text = user_lock(&ResourceName::new(name).unwrap());
            assert_eq!(text.len(), 58, "{text}");
            assert_eq!(text, text.to_lowercase());
        }
    }
}
