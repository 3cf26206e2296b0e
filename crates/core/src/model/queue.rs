//! Words for refusals.

use alloc::format;
use alloc::string::String;

use crate::claim::Kind;

/// Why a claim of one kind cannot stand where claims of another kind live.
pub(super) fn other_kind(there: Kind, asked: Kind) -> String {
    match (there, asked) {
        (Kind::Permits { limit }, Kind::Permits { limit: other }) => {
            format!("it has {limit} permits while claims on it live, not {other}")
        }
        (Kind::Permits { limit }, Kind::Lock) => {
            format!("it is a semaphore of {limit} permits while claims on it live, not a lock")
        }
        (Kind::Lock, _) => String::from("it is a lock while claims on it live, not a semaphore"),
    }
}
