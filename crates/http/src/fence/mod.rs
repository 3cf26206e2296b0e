//! A layer that refuses requests of holders whose lease has ended.
//!
//! A client that works under a lease shows its token with each request ([`FencingToken`]); the layer
//! raises the mark of what the request is about before the handler reads anything, and refuses an
//! older token.
//!
//! | the header `Fencing-Token` | answer |
//! |---|---|
//! | `EPOCH:N` or `N`, not older than what has been here | the handler's |
//! | missing | 428: the request must say under which lease it comes |
//! | neither, not ASCII, or there twice | 400 |
//! | older than a conflicting one that has been here | 412: trying again does not help |
//!
//! A stale token is 412 and not 409, since it is a condition that the request itself brought and that
//! does not hold; 409 would tell a client to settle a conflict and come back, and this one must stop.
//!
//! ```
//! use leasehold_fence::Resource;
//! use leasehold_http::fence::{FenceLayer, Guarded, MemoryFence};
//!
//! let layer = FenceLayer::new(MemoryFence::new(), |request: &http::request::Parts| {
//!     if request.method.is_safe() {
//!         return Ok(None); // not guarded
//!     }
//!     Ok(Some(Guarded::exclusive(Resource::new(request.uri.path())?)))
//! });
//! # drop(layer);
//! ```
//!
//! # What the layer alone does not do
//!
//! A check before the work is a race, wherever a newer holder can come between the two. With
//! [`MemoryFence`] none can: it waits until the older one's request is done. With [`SqlFence`] the
//! handler must enter again *in its own transaction*, which the [`Entered`] in the request's
//! extensions does, before it reads: see [`Entered::enter`]. The layer's check then saves the work,
//! and the handler's is what protects.

mod header;
mod layer;
mod marks;
mod memory;
mod sql;

pub use header::{FENCING_TOKEN, FencingToken};
pub use layer::{Entered, FenceLayer, FenceService, Guard, Guarded};
pub use marks::{FenceMarks, Passage, Refused};
pub use memory::MemoryFence;
pub use sql::SqlFence;
