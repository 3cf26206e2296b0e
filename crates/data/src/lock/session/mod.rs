//! Locks that live as long as a connection of their own: PostgreSQL's session-scoped advisory locks,
//! and MySQL's `GET_LOCK`.
//!
//! For work outside the database that must not run twice at once, where a second run costs time and
//! not truth. The guard opens a connection for itself, and is lost with it: the socket is watched,
//! so that [`Guard::lost`] tells at once what the server, the network or an operator ended.
//!
//! **It has no token.** Nothing refuses the late write of a holder that was stopped while its lock
//! went to another. Where such a write would hurt, take a lease of leasehold on the same database
//! and fence the write with its token: this mode cannot be made safe by more care.
//!
//! ```no_run
//! # #[cfg(feature = "tokio-postgres-0_7")]
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use leasehold_data::lock::{Key, Wait, session};
//!
//! let config = "host=db user=app dbname=shop".parse()?;
//! let locks = session::Postgres::new(config, tokio_postgres::NoTls);
//! let guard = locks.lock(&Key::new("nightly")?, Wait::AtMost(Duration::from_secs(5))).await?;
//! match guard.run(async { /* the work */ }).await {
//!     Ok(()) => {}
//!     Err(lost) => eprintln!("stopped half-way: {lost}"),
//! }
//! let _ = guard.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! **What ends it.** [`Guard::release`]; the guard's drop, which closes the connection; the end of
//! the connection, whoever ends it; the death of this process, as its sockets close. A host that is
//! cut off, or dead with its sockets, is seen by the server after the *term* (30 s by default): it
//! ends a session from which it has heard nothing for so long.
//!
//! **Loss.** A closed or reset connection is told at once. A silent one, cut somewhere on the way, is
//! told when a quarterly question of the term has had no answer for nine tenths of it: before the
//! server ends the session for its silence (PostgreSQL 14 and later, MySQL, MariaDB; older
//! PostgreSQL sees a dead client by TCP alone, later still). A server that dies, fails over or ends
//! the session itself frees the lock before anybody can tell: this is what only a token covers. A
//! runtime that is blocked asks no questions and is told nothing: [`Guard::is_held`] reads the clock.
//!
//! **Fairness.** None: a wait is made of short ones, as a waiter of PostgreSQL holds a snapshot, on
//! which CREATE INDEX CONCURRENTLY waits, and as a server does not see that a waiter is gone.
//!
//! **Re-entry.** Never: each guard is a session of its own, and a second one of the same name waits.
//!
//! **Cancel safety.** A dropped wait closes its connection, and leaves nothing.
//!
//! **Refused:** a pooler or proxy that answers from another connection than it greeted with, whatever its
//! mode; a standby or read-only server, whose locks are its own; Galera and other clusters of
//! several writers with `GET_LOCK`; a server that does not know the lock in the next statement. Each
//! with what to use in its place.
//!
//! **Costs** one connection a lock, and one small statement a quarter of the term. It needs a runtime
//! of tokio, with time and io. Drivers that read an idle connection only when it is used next, as
//! sqlx does, cannot watch it; the guard brings its own whatever else a program uses.

mod clock;
mod guard;
mod keep;
#[cfg(feature = "mysql_async-0_37")]
mod mysql;
#[cfg(feature = "tokio-postgres-0_7")]
mod postgres;
#[cfg(feature = "tokio-postgres-0_7")]
mod process_id;
#[cfg(feature = "mysql_async-0_37")]
mod relay;
mod wire;

use std::future::Future;
use std::time::Duration;

pub use guard::{Guard, Lost, Release};
#[cfg(feature = "mysql_async-0_37")]
pub use mysql::Mysql;
#[cfg(feature = "tokio-postgres-0_7")]
pub use postgres::Postgres;

use super::{Error, Result};

/// For how long a server keeps a session of which it hears nothing, unless set.
pub const TERM: Duration = Duration::from_secs(30);
/// The bounds of a term.
const TERM_LEAST: Duration = Duration::from_secs(2);
const TERM_MOST: Duration = Duration::from_secs(3600);

/// No connection, or no answer to a statement that does not wait, within this time: it is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

fn check_term(term: Duration) -> Result<Duration> {
    if (TERM_LEAST..=TERM_MOST).contains(&term) {
        return Ok(term);
    }
    let (least, most) = (TERM_LEAST, TERM_MOST);
    Err(Error::OutOfBounds { what: "the term of a session lock", least, most })
}

/// What is done within its time, or is not.
async fn within<T>(time: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(time, work).await.unwrap_or_else(|_| {
        Err(Error::Unreachable { why: format!("no answer within {time:?}"), source: None })
    })
}
