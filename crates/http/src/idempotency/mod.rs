//! A layer that runs a request once for each key, and answers what is sent again with the same.
//!
//! After the IETF draft *The Idempotency-Key HTTP Header Field* (draft-07). A client sends
//! `Idempotency-Key: "a key of its own for each operation"` with a POST or PATCH, and sends both
//! again, unchanged, when it does not know what became of it.
//!
//! | the request | answer |
//! |---|---|
//! | a new key | the handler's; stored |
//! | a key whose run is done | the stored one: status, headers, body, and `Idempotent-Replayed: true` |
//! | a key whose run is under way | 409 with `Retry-After` |
//! | a key that came with another method, path, query or body | 422 |
//! | no key (unless [`IdempotencyLayer::optional`]), or one that cannot be read | 400 |
//! | of nobody: the service's [`Caller`] knows no identity | 401 |
//! | a body over the limit, 1 MiB | 413; nothing was run |
//! | more runs under way than the limit, 1024, or the store is away | 503 with `Retry-After` |
//!
//! Refusals are `application/problem+json`; their member `code` is for programs.
//!
//! # What a run is
//!
//! The handler runs in a task of its own: a client that hangs up does not stop it, and finds the answer
//! when it asks again. While it runs its right is renewed; a process that dies is taken over by the
//! next try, once its run has been silent for the term ([`Keys::term`](leasehold_data::idempotency::Keys::term),
//! a minute unless set). A run that could not be renewed in time, or was taken over, is cancelled where
//! it awaits.
//!
//! - An answer of 500 and above is not stored: the next try runs again, from the last recovery point.
//!   [`IdempotencyLayer::keep_answers`] changes that.
//! - An answer over 1 MiB is refused with 413, *after* the work was done; that refusal is stored, so that
//!   a second try does not do the work again.
//! - Keys are one caller's own. Who calls is for the service to say, and there is no default: two
//!   callers that choose the same key must not be answered with each other's work.
//! - The fingerprint is made of what the layer sees of the path. Put the layer around the whole router,
//!   not into a nested one, whose path is cut.
//!
//! # Once, and at least once
//!
//! The layer commits twice: the claim before the handler, the answer after it. A process that dies
//! after the handler's own commit and before the answer's lets the next try run the handler again. So
//! let a handler whose work is in the same database store its answer there, in the same transaction:
//! see [`Keyed`]. Where the work is at somebody else's, pass on [`Run::step`](leasehold_data::idempotency::Run::step)
//! as a key of its own.
//!
//! ```
//! use leasehold_data::idempotency::Keys;
//! use leasehold_http::idempotency::{IdempotencyLayer, SqlKeys};
//! # use leasehold_http::Database;
//!
//! # fn layer(pool: impl Database) -> IdempotencyLayer {
//! IdempotencyLayer::new(SqlKeys::new(Keys::new(), pool), |request: &http::request::Parts| {
//!     // Whom the service has authenticated before, in a layer outside of this one.
//!     request.extensions.get::<String>().cloned()
//! })
//! # }
//! ```

mod answer;
mod header;
mod keyed;
mod layer;
mod run;
mod store;

pub use header::{IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, key_value};
pub use keyed::Keyed;
pub use layer::{Caller, IdempotencyLayer, IdempotencyService};
pub use store::{Ended, KeyStore, SqlKeys};
