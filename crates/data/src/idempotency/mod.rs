//! Work that is done once, however often it is asked for: claim a key, do the work, store the answer, replay it.
//!
//! # Which way
//!
//! *All the work is in the database that keeps the keys:* one transaction for claim, work and answer. They commit
//! or vanish together; a crash at any step leaves nothing behind; there is nothing to take over. [`Keys::once`] does
//! it in one call and at the least cost; by hand it is
//!
//! ```
//! use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys};
//! use leasehold_sql::Transaction;
//!
//! async fn order<T: Transaction>(tx: &mut T, keys: &Keys, tenant: &str, key: &str, body: &str)
//!     -> Result<Option<Answer>, leasehold_data::Error>
//! {
//!     let key = Key::new(tenant, key)?;
//!     match keys.claim(tx, &key, &Fingerprint::of([body])).await? {
//!         Claimed::Run(run) => {
//!             tx.execute("INSERT INTO orders (what) VALUES ($1)", &[body.into()]).await?;
//!             let answer = Answer::new(201, "ordered");
//!             keys.finish(tx, &run, &answer).await?;
//!             Ok(Some(answer)) // the caller commits
//!         }
//!         Claimed::Replay(answer) => Ok(Some(answer)),
//!         Claimed::Busy { .. } | Claimed::Mismatch => Ok(None),
//!     }
//! }
//! ```
//!
//! *Some of it is elsewhere*, as at a payment provider: claim and commit; do a step, passing [`Run::step`] on as
//! the provider's own idempotency key; note a [recovery point](Keys::recovery_point) and commit; and so on; finish
//! in the transaction of the last local work. Who crashes is taken over after a term of silence, by a run with a
//! higher token that goes on at the last recovery point; a run that was taken over cannot finish any more. A step
//! between two recovery points may be done twice, hence the key that is passed on.
//!
//! # Isolation
//!
//! At READ COMMITTED and, with a restart of the transaction where the database asks for it, at REPEATABLE READ and
//! SERIALIZABLE. On SQLite begin with `BEGIN IMMEDIATE`.
//!
//! # When not
//!
//! A work that is idempotent by itself needs no key: `PUT` of a whole resource, a conditional update, an insert
//! under a unique key that the caller chose ([`Unique`](crate::unique::Unique)).

mod answer;
mod claim;
mod clean;
mod finish;
mod key;
mod known;
mod once;
mod run;
mod table;
mod text;

use std::sync::Arc;
use std::time::Duration;

use leasehold_sql::Engine;

pub use answer::Answer;
pub use key::{Fingerprint, Key, TryId};
pub use once::Outcome;
pub use run::{RecoveryPoint, Run};

use crate::{Error, Result, Table};
use text::{Names, Texts};

/// Keeps idempotency keys in a table of the caller's database. Cheap to clone; make one and share it.
#[derive(Clone, Debug)]
pub struct Keys {
    names: Option<Names>,
    table_name: String,
    keep: Duration,
    term: Duration,
    limit: usize,
    texts: Arc<[Texts; 3]>,
}

/// What the answer to a claim is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Claimed {
    /// The work is this caller's to do: for the first time, or after a run that fell silent.
    Run(Run),
    /// It is done; this is its answer.
    Replay(Answer),
    /// It is being done. In so long at the latest it is done, renewed, or to be taken over.
    Busy {
        /// By the server's clock.
        retry_after: Duration,
    },
    /// The key came with another payload before. Nothing is done.
    Mismatch,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys::new()
    }
}

impl Keys {
    /// Keys in the table `leasehold_idempotency`: answers of up to 1 MiB, kept for 24 hours; a run that is silent
    /// for a minute is taken over.
    pub fn new() -> Keys {
        Keys {
            names: None,
            table_name: "leasehold_idempotency".to_owned(),
            keep: Duration::from_secs(24 * 60 * 60),
            term: Duration::from_secs(60),
            limit: 1024 * 1024,
            texts: Arc::new(every(None)),
        }
    }

    /// The same in another table, made by [`Keys::create_table`] or with [`Keys::table_text`].
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if its index, `<table>_expires`, would have too long a name.
    pub fn in_table(self, table: Table) -> Result<Keys> {
        let table_name = table.to_string();
        let names = Names::new(table)?;
        let texts = Arc::new(every(Some(&names)));
        Ok(Keys { names: Some(names), table_name, texts, ..self })
    }

    /// How long an answer is kept from its finish, at least: 1 s to 10 years. Until it is cleaned it may be longer
    /// there, but is not replayed.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`].
    pub fn keep(self, keep: Duration) -> Result<Keys> {
        let bounds = (Duration::from_secs(1), Duration::from_secs(10 * 366 * 24 * 60 * 60));
        within("the time to keep an answer", keep, bounds, ("1 s", "10 years"))?;
        Ok(Keys { keep, ..self })
    }

    /// How long a run may be silent before another takes over: 100 ms to 24 hours. Longer than the longest step
    /// between two recovery points or renewals.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`].
    pub fn term(self, term: Duration) -> Result<Keys> {
        let bounds = (Duration::from_millis(100), Duration::from_secs(24 * 60 * 60));
        within("the term of a run", term, bounds, ("100 ms", "24 h"))?;
        Ok(Keys { term, ..self })
    }

    /// How long a run may be silent, as [`Keys::term`] has set it: renew it well before.
    pub fn run_term(&self) -> Duration {
        self.term
    }

    /// The most bytes that head and body of an answer may have together: up to 16 MiB − 1.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfBounds`].
    pub fn answer_limit(self, bytes: usize) -> Result<Keys> {
        if bytes >= 16 * 1024 * 1024 {
            let what = "the limit of an answer";
            return Err(Error::OutOfBounds { what, least: "0", most: "16 MiB − 1" });
        }
        Ok(Keys { limit: bytes, ..self })
    }

    fn texts(&self, engine: Engine) -> &Texts {
        let [postgres, mysql, sqlite] = &*self.texts;
        match engine {
            Engine::Postgres => postgres,
            Engine::Mysql => mysql,
            _ => sqlite,
        }
    }

    fn table_name(&self) -> &str {
        &self.table_name
    }

    fn term_us(&self) -> i64 {
        microseconds(self.term)
    }

    fn keep_us(&self) -> i64 {
        microseconds(self.keep)
    }

    /// A claim keeps its row for a little longer than promised, so that finish need not change when it expires.
    fn keep_and_slack_us(&self) -> i64 {
        microseconds(self.keep + self.keep / 10)
    }
}

fn every(names: Option<&Names>) -> [Texts; 3] {
    [Engine::Postgres, Engine::Mysql, Engine::Sqlite].map(|engine| Texts::new(engine, names))
}

fn within(
    what: &'static str,
    span: Duration,
    (least, most): (Duration, Duration),
    told: (&'static str, &'static str),
) -> Result<()> {
    if span < least || span > most {
        return Err(Error::OutOfBounds { what, least: told.0, most: told.1 });
    }
    Ok(())
}

fn microseconds(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
