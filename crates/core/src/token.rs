//! Fencing tokens, epochs and the two marks a fence keeps.
//!
//! A token rises with every grant of a resource. A fence at the protected thing remembers the
//! newest token it has seen and refuses older ones, so that a holder that slept through the end of
//! its lease cannot write (Kleppmann, "How to do distributed locking", 2016; Burrows, "The Chubby
//! lock service", OSDI 2006, section 2.4, where they are called sequencers).

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The fencing token of a grant.
///
/// Strictly rising per resource from grant to grant; the same across re-entry; used for nothing
/// but fencing. Never 0, and below 2^53 so that it survives JSON.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The largest token: 2^53 − 1, the largest integer that every JSON reader keeps exactly.
    pub const MAX: Token = Token((1 << 53) - 1);

    /// A token of this value, or `None` if it is 0 or above [`Token::MAX`].
    pub const fn new(value: u64) -> Option<Token> {
        if value == 0 || value > Token::MAX.0 { None } else { Some(Token(value)) }
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next token to mint after `last`, not below `floor`.
    ///
    /// The floor is the store's wall clock in microseconds since 1970, where it has one: tokens
    /// then keep rising over a lost counter, a restore or a failover, provided no clock that
    /// minted was ahead of the next by more than the time between the two grants.
    /// `None` when the numbers are used up.
    pub fn next(last: Option<Token>, floor: u64) -> Option<Token> {
        let after_last = last.map_or(1, |t| t.0 + 1);
        Token::new(if after_last > floor { after_last } else { floor })
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Which history of a resource its tokens belong to.
///
/// Moving a resource to another store, or restoring a store from a backup, starts a new history
/// whose tokens may be lower; the operator raises the epoch (`?epoch=1` in the store's URL), and
/// every mark of a lower epoch gives way to it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u32);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What travels to the protected thing and what it remembers: a token within its epoch.
///
/// Ordered by epoch first. Written `N` in epoch 0, else `EPOCH:N`.
///
/// ```
/// use leasehold_core::{Epoch, Mark, Token};
///
/// let old: Mark = "41".parse()?;
/// let new: Mark = "1:7".parse()?;
/// assert_eq!(old, Mark { epoch: Epoch(0), token: Token::new(41).unwrap() });
/// assert!(new > old, "a later epoch outranks any token of an earlier one");
/// assert_eq!(new.to_string(), "1:7");
/// # Ok::<(), leasehold_core::ParseMarkError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The history the token belongs to.
    pub epoch: Epoch,
    /// The token.
    pub token: Token,
}

impl From<Token> for Mark {
    fn from(token: Token) -> Mark {
        Mark { epoch: Epoch(0), token }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.epoch == Epoch(0) {
            write!(f, "{}", self.token)
        } else {
            write!(f, "{}:{}", self.epoch, self.token)
        }
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mark({self})")
    }
}

impl FromStr for Mark {
    type Err = ParseMarkError;

    fn from_str(text: &str) -> Result<Mark, ParseMarkError> {
        let fail = || ParseMarkError { text: text.chars().take(40).collect() };
        let (epoch, token) = match text.split_once(':') {
            Some((epoch, token)) => (parse_plain(epoch).ok_or_else(fail)?, token),
            None => (0, text),
        };
        let epoch = Epoch(u32::try_from(epoch).map_err(|_| fail())?);
        let token = parse_plain(token).and_then(Token::new).ok_or_else(fail)?;
        Ok(Mark { epoch, token })
    }
}

/// Digits only: `u64::from_str` would also take a leading plus.
fn parse_plain(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

/// The text is neither `N` nor `EPOCH:N`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read `{text}` as a fencing token: want N or EPOCH:N, with N from 1 to 9007199254740991")]
pub struct ParseMarkError {
    text: String,
}

/// How the protected thing is accessed, for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Under an exclusive grant: conflicts with every other access.
    Exclusive,
    /// Under a shared grant: conflicts only with exclusive accesses.
    Shared,
}

/// The two marks that a fence keeps for one resource.
///
/// With one mark only, a live reader would be refused as soon as a newer reader had passed. So an
/// exclusive access passes if and only if its token is at least both marks, a shared one if and
/// only if it is at least the exclusive mark; each raises its own mark. A permit slot is fenced as
/// a resource of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks {
    /// The newest exclusive access.
    pub exclusive: Option<Mark>,
    /// The newest shared access.
    pub shared: Option<Mark>,
}

impl Marks {
    /// Lets an access pass and returns the raised marks, or refuses it as stale.
    ///
    /// ```
    /// use leasehold_core::{Access, Marks, Token};
    ///
    /// let at = |n| leasehold_core::Mark::from(Token::new(n).unwrap());
    /// let marks = Marks::default().admit(Access::Shared, at(11))?;
    /// let marks = marks.admit(Access::Shared, at(10))?; // an older reader is still a reader
    /// assert!(marks.admit(Access::Exclusive, at(10)).is_err()); // an older writer is not
    /// let marks = marks.admit(Access::Exclusive, at(12))?;
    /// assert!(marks.admit(Access::Shared, at(11)).is_err());
    /// # Ok::<(), leasehold_core::Stale>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Stale`], with the mark that stands in the way; the marks are unchanged.
    pub fn admit(self, access: Access, with: Mark) -> Result<Marks, Stale> {
        let barrier = match access {
            Access::Exclusive => self.exclusive.max(self.shared),
            Access::Shared => self.exclusive,
        };
        match barrier {
            Some(newest) if with < newest => Err(Stale { offered: with, newest }),
            _ => Ok(self.raised(access, with)),
        }
    }

    fn raised(mut self, access: Access, with: Mark) -> Marks {
        let own = match access {
            Access::Exclusive => &mut self.exclusive,
            Access::Shared => &mut self.shared,
        };
        *own = (*own).max(Some(with));
        self
    }
}

/// A fence has seen a newer token than the one offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stale token {offered} refused: a holder with token {newest} has been here")]
pub struct Stale {
    /// The token that was offered.
    pub offered: Mark,
    /// The newest conflicting one that the fence has seen.
    pub newest: Mark,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    fn at(n: u64) -> Mark {
        Mark::from(Token::new(n).unwrap())
    }

    #[test]
    fn next_is_above_the_last_and_not_below_the_floor() {
        assert_eq!(Token::next(None, 0), Token::new(1));
        assert_eq!(Token::next(Token::new(7), 3), Token::new(8));
        assert_eq!(Token::next(Token::new(7), 100), Token::new(100));
        assert_eq!(Token::next(Some(Token::MAX), 0), None);
    }

    #[test]
    fn marks_are_parsed_strictly() {
        for bad in ["", "0", "+1", "-1", "1:", ":1", "1:0", "a", " 1", "9007199254740992", "1:2:3"]
        {
            assert!(bad.parse::<Mark>().is_err(), "{bad:?} was read");
        }
        assert!("4294967296:1".parse::<Mark>().is_err(), "the epoch is 32 bits");
    }

    proptest! {
        #[test]
        fn a_mark_survives_its_text(epoch: u32, n in 1..=Token::MAX.get()) {
            let mark = Mark { epoch: Epoch(epoch), token: Token::new(n).unwrap() };
            prop_assert_eq!(mark.to_string().parse::<Mark>(), Ok(mark));
        }

        #[test]
        fn no_conflicting_access_passes_below_one_that_passed(
            accesses in proptest::collection::vec((any::<bool>(), 1..20_u64), 1..40),
        ) {
            let mut marks = Marks::default();
            let mut passed: alloc::vec::Vec<(bool, u64)> = alloc::vec::Vec::new();
            for (exclusive, n) in accesses {
                let access = if exclusive { Access::Exclusive } else { Access::Shared };
                let conflict = passed.iter().any(|&(e, m)| (e || exclusive) && m > n);
                match marks.admit(access, at(n)) {
                    Ok(raised) => {
                        prop_assert!(!conflict);
                        marks = raised;
                        passed.push((exclusive, n));
                    }
                    Err(_) => prop_assert!(conflict),
                }
            }
        }
    }
}
