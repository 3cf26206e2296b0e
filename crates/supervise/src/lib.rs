//! The keeper of leasehold: a process that ends a command before its right ends.
//!
//! A command that runs under a lease must be dead before the lease can be another's, also when the
//! program that renews it is stopped, hung or dead. So a run is two processes. The *front*, this
//! one, has the terminal, the store and the renewal. The *keeper*, forked from it before any
//! thread exists, starts the command and is told each new deadline; when no new one comes it asks
//! the command's whole tree to end, and kills what is left before the deadline. If the front dies
//! the keeper kills the tree; if the keeper dies the front does.
//!
//! This crate knows no store: in goes a stream of deadlines, out comes how it ended.
//!
//! # When not to use it
//!
//! Where the command runs as another user than this process, its processes cannot be signalled:
//! [`Ended::unkillable`] names them. Where front and keeper are both killed or frozen, only the
//! store's term and a fence protect. Linux only so far.
//!
//! # Example
//!
//! ```standalone_crate
//! use std::time::Duration;
//! use leasehold_supervise::{ClockKind, Deadline, Event, Front, How, Lookup, Plan, Start, lookup};
//!
//! // First of all, before any thread.
//! let Lookup::Found(program) = lookup("true".as_ref(), None) else { panic!("no true") };
//! let mut front = Front::fork(&Plan::new(program, vec!["true".into()]))?;
//! // ... the lease is acquired here, and `front.wait` answers signals meanwhile ...
//! let deadline = Deadline::after(ClockKind::Boot, Duration::from_secs(30));
//! front.start(&Start { deadline: Some(deadline), ..Start::default() })?;
//! let renewals = front.deadlines();
//! renewals.extend(Deadline::after(ClockKind::Boot, Duration::from_secs(40)))?;
//! let ended = loop {
//!     if let Event::Ended(ended) = front.wait(None)? {
//!         break ended;
//!     }
//! };
//! assert_eq!((ended.how, ended.forced), (How::Exited(0), None));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod environ;
mod error;
mod front;
mod keeper;
mod lookup;
mod machine;
mod message;
mod plan;
mod signals;
mod sys;
mod time;
mod tree;

pub use error::{Error, Result};
pub use front::{DeadlineSender, Front, Waker};
pub use lookup::{Lookup, lookup};
pub use plan::{Ended, Event, How, OnDeadline, Plan, Reason, Signal, Start};
pub use signals::{Process, Signals, die_by, outlive_file_limit, wait_readable};
pub use time::{ClockKind, Deadline};

/// Which of descriptors 0, 1 and 2 were closed when this program began. Rust's runtime opens
/// `/dev/null` over them before `main`; the command finds them closed again.
#[must_use]
pub fn closed_at_start() -> [bool; 3] {
    sys::inherited().closed
}
