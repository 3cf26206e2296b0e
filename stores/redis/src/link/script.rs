//! Scripts, told to a server by the hash of their text.

use std::fmt;
use std::sync::OnceLock;

/// A script that the server runs as one step.
pub(crate) struct Script {
    name: &'static str,
    text: &'static str,
    hash: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Script {
        Script { name, text, hash: OnceLock::new() }
    }

    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    /// The SHA-1 of the text, in hexadecimal, by which the server finds it.
    pub(crate) fn hash(&self) -> &str {
        self.hash.get_or_init(|| sha1_smol::Sha1::from(self.text).digest().to_string())
    }
}

/// What happens most: a script for one, and one for many of it at once. Both are told the same
/// arguments first; then come the keys and the arguments of each, and each is answered alone.
pub(crate) struct Usual {
    pub(crate) one: Script,
    pub(crate) many: Script,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Script").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_servers() {
        // `redis-cli SCRIPT LOAD 'return 1'`
        static ONE: Script = Script::new("one", "return 1");
        assert_eq!(ONE.hash(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
