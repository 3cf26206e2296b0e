//! Passwords that never show.

use std::fmt;

use zeroize::Zeroizing;

/// A password, a token or a key.
///
/// It shows as `***` wherever it is printed, and its memory is wiped when it is dropped.
///
/// ```
/// let secret = leasehold_net::Secret::new("s3cret");
/// assert_eq!(format!("{secret} {secret:?}"), "*** ***");
/// assert_eq!(secret.expose(), "s3cret");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Keeps this secret.
    pub fn new(secret: impl Into<String>) -> Secret {
        Secret(Zeroizing::new(secret.into()))
    }

    /// The secret itself, for whoever must send it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<String> for Secret {
    fn from(secret: String) -> Secret {
        Secret::new(secret)
    }
}

impl From<&str> for Secret {
    fn from(secret: &str) -> Secret {
        Secret::new(secret)
    }
}
