//! The usual case by one statement: exclusive claims of names where nobody is, and their releases.
//!
//! The statements are prepared, so they are for connections that stay one session. What they pass
//! over, and everything through a pooler that lends sessions, is decided by the procedure.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_core::ResourceName;
use serde_json::{Value, json};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::schema::quote;

/// Plans go by the keys, whatever the tables held when they were made.
const SETTINGS: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
     SET enable_hashjoin = off; SET enable_mergejoin = off";
/// How many names are told apart in [`Crowds`].
const CROWDS: usize = 1024;

/// What a call is where its name is free, or nobody waits for it.
#[derive(Debug, Clone)]
pub(crate) enum Usual {
    Take(Take),
    /// The claim.
    Free(String),
}

/// An exclusive claim.
#[derive(Debug, Clone)]
pub(crate) struct Take {
    pub(crate) claim: String,
    pub(crate) holder: String,
    pub(crate) label: String,
    pub(crate) term_us: i64,
    pub(crate) life: &'static str,
    pub(crate) after_loss_us: i64,
}

/// The two statements, on one connection.
pub(crate) struct Quick {
    take: Statement,
    free: Statement,
}

/// What was done, in the words of the procedure's answer, and the server's clock.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) answer: Value,
    pub(crate) at_us: u64,
}

impl Quick {
    pub(crate) async fn prepare(client: &Client, schema: &str) -> Result<Quick, Error> {
        client.batch_execute(SETTINGS).await?;
        let placed = |sql: &str| sql.replace("public.", &format!("{}.", quote(schema)));
        let take = placed(include_str!("sql/take.sql"));
        let free = placed(include_str!("sql/free.sql"));
        const TEXTS: Type = Type::TEXT_ARRAY;
        const NUMBERS: Type = Type::INT8_ARRAY;
        let of_take = [TEXTS, TEXTS, TEXTS, TEXTS, NUMBERS, TEXTS, NUMBERS];
        Ok(Quick {
            take: client.prepare_typed(&take, &of_take).await?,
            free: client.prepare_typed(&free, &[TEXTS, TEXTS]).await?,
        })
    }

    /// Takes those of these names that are free; each name is there once.
    pub(crate) async fn take(
        &self,
        client: &Client,
        asked: &[(&ResourceName, &Take)],
    ) -> Result<Vec<Done>, Error> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = asked.iter().map(|(name, _)| name.as_str()).collect();
        let texts =
            |of: fn(&Take) -> &str| -> Vec<&str> { asked.iter().map(|a| of(a.1)).collect() };
        let numbers =
            |of: fn(&Take) -> i64| -> Vec<i64> { asked.iter().map(|a| of(a.1)).collect() };
        let (claims, holders) = (texts(|t| &t.claim), texts(|t| &t.holder));
        let (labels, lives) = (texts(|t| &t.label), texts(|t| t.life));
        let (terms, losses) = (numbers(|t| t.term_us), numbers(|t| t.after_loss_us));
        let rows = client
            .query(&self.take, &[&names, &claims, &holders, &labels, &terms, &lives, &losses])
            .await?;
        let term_of = |name: &str| asked.iter().find(|a| a.0.as_str() == name).map(|a| a.1.term_us);
        let done = |row: &Row| {
            let name: String = row.try_get(0)?;
            let (token, previous): (i64, String) = (row.try_get(1)?, row.try_get(2)?);
            let left = term_of(&name);
            let answer = json!({
                "is": "granted", "token": token, "left": left, "slots": [], "previous": previous,
            });
            Ok(Done { name, answer, at_us: at(row, 3)? })
        };
        rows.iter().map(done).collect()
    }

    /// Ends those of these grants that nobody waits behind; each name is there once.
    pub(crate) async fn free(
        &self,
        client: &Client,
        asked: &[(&ResourceName, &String)],
    ) -> Result<Vec<Done>, Error> {
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = asked.iter().map(|(name, _)| name.as_str()).collect();
        let claims: Vec<&str> = asked.iter().map(|(_, claim)| claim.as_str()).collect();
        let rows = client.query(&self.free, &[&names, &claims]).await?;
        let done = |row: &Row| {
            let answer = json!({ "is": "released", "free": true });
            Ok(Done { name: row.try_get(0)?, answer, at_us: at(row, 1)? })
        };
        rows.iter().map(done).collect()
    }
}

fn at(row: &Row, column: usize) -> Result<u64, Error> {
    Ok(u64::try_from(row.try_get::<_, i64>(column)?).unwrap_or(0))
}

/// Whether the session does not know what was prepared in it: it is not the same, or was made new.
pub(crate) fn is_forgotten(error: &Error) -> bool {
    let known = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::DUPLICATE_PSTATEMENT];
    error.code().is_some_and(|code| known.contains(code))
}

/// Names where somebody was in the way when last heard: there the usual case is not tried first.
/// A few bits for all names; being wrong costs a round trip.
pub(crate) struct Crowds {
    seen: Vec<AtomicBool>,
    hash: RandomState,
}

impl Default for Crowds {
    fn default() -> Crowds {
        Crowds {
            seen: std::iter::repeat_with(AtomicBool::default).take(CROWDS).collect(),
            hash: RandomState::new(),
        }
    }
}

impl Crowds {
    fn of(&self, name: &ResourceName) -> Option<&AtomicBool> {
        let hash = self.hash.hash_one(name.as_str());
        self.seen.get(usize::try_from(hash % CROWDS as u64).unwrap_or(0))
    }

    pub(crate) fn is_at(&self, name: &ResourceName) -> bool {
        self.of(name).is_some_and(|seen| seen.load(Ordering::Relaxed))
    }

    /// Learns from an answer to a call that is the usual case if nobody else is there, or never is.
    pub(crate) fn note(&self, name: &ResourceName, has_usual: bool, answer: &Value) {
        let is_crowd = match answer.get("is").and_then(Value::as_str) {
            Some("granted") => !has_usual,
            Some("waiting" | "busy") => true,
            Some("released") => answer.get("free").and_then(Value::as_bool) == Some(false),
            _ => return,
        };
        if let Some(seen) = self.of(name) {
            seen.store(is_crowd, Ordering::Relaxed);
        }
    }
}
