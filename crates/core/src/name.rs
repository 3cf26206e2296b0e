//! Names of resources, and the one reversible escape for stores that cannot take every byte.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::fmt::{self, Write as _};
use core::str::FromStr;

/// The name of what is locked: 1 to 512 bytes of UTF-8 without control characters.
///
/// Taken as bytes and not normalised: `é` in one code point and in two are two resources.
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(Arc<str>);

impl ResourceName {
    /// The longest name, in bytes.
    pub const LEN_MAX: usize = 512;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`BadName`] says which rule it breaks.
    pub fn new(name: &str) -> Result<ResourceName, BadName> {
        check(name)?;
        Ok(ResourceName(name.into()))
    }

    /// The name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name with every byte outside `A–Z a–z 0–9 _ -` and `safe` written as `%XX`.
    ///
    /// Injective: different names never escape to the same text, and [`ResourceName::unescape`]
    /// brings the name back. For stores whose keys give a meaning to `/`, `.`, `{` and the like.
    pub fn escaped(&self, safe: &[u8]) -> String {
        let mut text = String::with_capacity(self.0.len());
        for &byte in self.0.as_bytes() {
            let plain = byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
            if byte != b'%' && byte.is_ascii() && (plain || safe.contains(&byte)) {
                text.push(char::from(byte));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
        text
    }

    /// Reads what [`ResourceName::escaped`] wrote.
    ///
    /// # Errors
    ///
    /// [`BadName`] if it is not what an escaped name can be.
    pub fn unescape(text: &str) -> Result<ResourceName, BadName> {
        let mut bytes = alloc::vec::Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            rest = tail;
            if first != b'%' {
                bytes.push(first);
                continue;
            }
            let digits = rest.get(..2).and_then(|pair| core::str::from_utf8(pair).ok());
            let byte = digits
                .filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()))
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
                .ok_or(BadName::Escape)?;
            bytes.push(byte);
            rest = &rest[2..];
        }
        let name = String::from_utf8(bytes).map_err(|_| BadName::Utf8)?;
        ResourceName::new(&name)
    }
}

fn check(name: &str) -> Result<(), BadName> {
    if name.is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > ResourceName::LEN_MAX {
        return Err(BadName::TooLong { len: name.len() });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, c)) => Err(BadName::Control { at, code: u32::from(c) }),
        None => Ok(()),
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for ResourceName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for ResourceName {
    type Err = BadName;

    fn from_str(name: &str) -> Result<ResourceName, BadName> {
        ResourceName::new(name)
    }
}

/// Why a text cannot name a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadName {
    /// It is empty.
    #[error("a name is empty: want 1 to 512 bytes")]
    Empty,
    /// It has more than [`ResourceName::LEN_MAX`] bytes.
    #[error("a name has {len} bytes: want 1 to 512")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// It holds a control character.
    #[error("a name holds the control character U+{code:04X} at byte {at}: want none")]
    Control {
        /// Where, in bytes.
        at: usize,
        /// Which.
        code: u32,
    },
    /// It is not UTF-8.
    #[error("a name is not UTF-8")]
    Utf8,
    /// An escape is not `%` and two hexadecimal digits.
    #[error("an escaped name holds a `%` without two hexadecimal digits after it")]
    Escape,
}

/// A text made fit to be shown: control characters escaped, cut to `max` bytes.
///
/// What is read from a store was written by anyone; a terminal must not obey it.
pub fn shown(text: &str, max: usize) -> Cow<'_, str> {
    let fits = text.len() <= max;
    if fits && !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        let piece = if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
        if out.len() + piece.len() > max {
            out.push('…');
            break;
        }
        out.push_str(&piece);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    #[test]
    fn the_limits_are_bytes() {
        assert!(ResourceName::new(&"x".repeat(512)).is_ok());
        assert_eq!(ResourceName::new(&"é".repeat(257)), Err(BadName::TooLong { len: 514 }));
        assert_eq!(ResourceName::new(""), Err(BadName::Empty));
        assert_eq!(ResourceName::new("a\nb"), Err(BadName::Control { at: 1, code: 10 }));
        assert_eq!(ResourceName::new("\u{85}"), Err(BadName::Control { at: 0, code: 0x85 }));
    }

    #[test]
    fn escapes_what_stores_give_a_meaning_to() {
        let name = ResourceName::new("a/b.{c}%é").unwrap();
        assert_eq!(name.escaped(b""), "a%2Fb%2E%7Bc%7D%25%C3%A9");
        assert_eq!(name.escaped(b"/."), "a/b.%7Bc%7D%25%C3%A9");
        assert_eq!(ResourceName::unescape("a%2"), Err(BadName::Escape));
        assert_eq!(ResourceName::unescape("a%+1"), Err(BadName::Escape));
        assert_eq!(ResourceName::unescape("a%FF"), Err(BadName::Utf8));
    }

    #[test]
    fn shown_text_cannot_steer_a_terminal() {
        assert_eq!(shown("plain", 80), "plain");
        assert_eq!(shown("a\u{1b}[2J", 80), "a\\u{1b}[2J");
        assert_eq!(shown("abcdef", 3), "abc…");
    }

    proptest! {
        #[test]
        fn escaping_is_reversible(name in "[^\\p{Cc}]{1,40}", safe in "[/.:]{0,3}") {
            let name = ResourceName::new(&name).unwrap();
            let back = ResourceName::unescape(&name.escaped(safe.as_bytes()));
            prop_assert_eq!(back, Ok(name));
        }

        #[test]
        fn unescaping_never_panics(text in ".{0,40}") {
            let _ = format!("{:?}", ResourceName::unescape(&text));
        }
    }
}
