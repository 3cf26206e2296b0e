//! Claim, work and answer in one transaction, in one call.

use std::time::Duration;

use leasehold_sql::{Class, Engine, Transaction};

use super::claim::Asked;
use super::table::{names, restart, timed};
use super::{Answer, Claimed, Fingerprint, Key, Keys, TryId};
use crate::Error;

/// How a piece of work ended that is done once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It was done now: commit, then give this answer.
    Done(Answer),
    /// It was done before; this was its answer.
    Replayed(Answer),
    /// It is being done elsewhere, by a run of several transactions.
    Busy {
        /// In so long at the latest it is done, renewed, or to be taken over.
        retry_after: Duration,
    },
    /// The key came with another payload before. Nothing was done.
    Mismatch,
}

impl Keys {
    /// Claims a key, does the work and stores its answer, all in the caller's transaction: for work that is in this
    /// database alone. The caller commits where it is [`Outcome::Done`], and rolls back on any error, its own too:
    /// then the key is as if it had never been claimed.
    ///
    /// It costs two statements beside the work, one that reads and one that inserts: less than
    /// [`claim`](Keys::claim) and [`finish`](Keys::finish) in one transaction, which write twice. On PostgreSQL
    /// another transaction with the same key waits before its work begins; on MySQL it may do the work beside the
    /// first, and is then told to roll back and begin again, when it is told the first one's answer. On SQLite
    /// begin with `BEGIN IMMEDIATE`.
    ///
    /// ```
    /// use leasehold_data::Error;
    /// use leasehold_data::idempotency::{Answer, Fingerprint, Key, Keys, Outcome};
    /// use leasehold_sql::Transaction;
    ///
    /// async fn order<T: Transaction>(tx: &mut T, keys: &Keys, key: &Key, body: &str) -> Result<Outcome, Error> {
    ///     keys.once(tx, key, &Fingerprint::of([body]), async |tx: &mut T| {
    ///         tx.execute("INSERT INTO orders (what) VALUES ($1)", &[body.into()]).await?;
    ///         Ok(Answer::new(201, "ordered"))
    ///     })
    ///     .await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Keys::claim`] and [`Keys::finish`], and what the work says. [`Class::Restart`]: another transaction was
    /// first; roll back and run the transaction again.
    pub async fn once<T, E>(
        &self,
        tx: &mut T,
        key: &Key,
        payload: &Fingerprint,
        work: impl AsyncFnOnce(&mut T) -> Result<Answer, E>,
    ) -> Result<Outcome, E>
    where
        T: Transaction + ?Sized,
        E: From<Error>,
    {
        if !self.is_known(tx, key).await? {
            let answer = match work(tx).await {
                Ok(answer) => answer,
                Err(error) => return Err(self.first_or(tx, key, error).await),
            };
            self.store(tx, key, payload, &answer).await?;
            return Ok(Outcome::Done(answer));
        }
        let id = TryId::random()?;
        match self.claim_known(tx, &Asked { key, payload, id: &id }, true).await? {
            Claimed::Run(run) => {
                let answer = work(tx).await?;
                self.finish(tx, &run, &answer).await?;
                Ok(Outcome::Done(answer))
            }
            Claimed::Replay(answer) => Ok(Outcome::Replayed(answer)),
            Claimed::Busy { retry_after } => Ok(Outcome::Busy { retry_after }),
            Claimed::Mismatch => Ok(Outcome::Mismatch),
        }
    }

    /// Whether anything is known of the key, or was just being done under it. On PostgreSQL the key is then this
    /// transaction's until it ends.
    async fn is_known<T>(&self, tx: &mut T, key: &Key) -> Result<bool, Error>
    where
        T: Transaction + ?Sized,
    {
        let texts = self.texts(tx.engine());
        if tx.engine() != Engine::Postgres {
            return Ok(!self.rows(tx, &texts.meet, &names(key)).await?.is_empty());
        }
        let lock = key.lock_number(self.table_name());
        let mut values = names(key);
        values.push(lock.into());
        let rows = self.rows(tx, &texts.meet, &values).await?;
        let row = rows.first().ok_or_else(|| self.corrupt("no answer"))?;
        if row.int(0) != Some(1) {
            self.rows(tx, &texts.wait, &[lock.into()]).await?;
            return Ok(true);
        }
        Ok(row.int(1) != Some(0))
    }

    /// What failed because another transaction with the same key was first is no failure: its answer is there.
    async fn first_or<T, E>(&self, tx: &mut T, key: &Key, error: E) -> E
    where
        T: Transaction + ?Sized,
        E: From<Error>,
    {
        if tx.engine() != Engine::Mysql {
            return error;
        }
        let rows = self.rows(tx, &self.texts(Engine::Mysql).meet_newest, &names(key)).await;
        match rows {
            Ok(rows) if !rows.is_empty() => restart(FIRST).into(),
            _ => error,
        }
    }

    /// Stores the answer of a key of which nothing was known.
    async fn store<T>(
        &self,
        tx: &mut T,
        key: &Key,
        payload: &Fingerprint,
        answer: &Answer,
    ) -> Result<(), Error>
    where
        T: Transaction + ?Sized,
    {
        self.fits(answer)?;
        let engine = tx.engine();
        let mut values = names(key);
        values.extend([
            payload.as_bytes().to_vec().into(),
            i64::from(answer.status).into(),
            answer.head.clone().into(),
            answer.body.clone().into(),
            self.keep_us().into(),
        ]);
        timed(engine, &mut values);
        match self.execute(tx, &self.texts(engine).done, &values).await {
            Ok(0) => Err(restart(FIRST)),
            Err(error) if error.class() == Some(Class::Duplicate) => Err(restart(FIRST)),
            other => other.map(|_| ()),
        }
    }
}

const FIRST: &str = "another transaction with the same idempotency key was first";
