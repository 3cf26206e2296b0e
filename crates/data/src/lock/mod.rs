//! Locks that live and end with the caller's own transaction.
