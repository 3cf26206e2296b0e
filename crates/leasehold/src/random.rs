//! Random bits from the operating system.

use leasehold_core::{Error, ErrorKind, Result};

/// 128 random bits, for claim ids and holders.
pub(crate) fn bits128() -> Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::Unavailable, "draw a random id", e.to_string()))?;
    Ok(u128::from_ne_bytes(bytes))
}
