//! Claim, work and answer in one transaction, in one call.

use std::time::Duration;

use leasehold_sql::Transaction;

use super::{Answer, Claimed, Fingerprint, Key, Keys, Run};
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
    /// ```
    /// use leasehold_data::Error;
    /// use leasehold_data::idempotency::{Answer, Fingerprint, Key, Keys, Outcome};
    /// use leasehold_sql::Transaction;
    ///
    /// async fn order<T: Transaction>(tx: &mut T, keys: &Keys, key: &Key, body: &str) -> Result<Outcome, Error> {
    ///     keys.once(tx, key, &Fingerprint::of([body]), async |tx: &mut T, _run| {
    ///         tx.execute("INSERT INTO orders (what) VALUES ($1)", &[body.into()]).await?;
    ///         Ok(Answer::new(201, "ordered"))
    ///     })
    ///     .await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Keys::claim`] and [`Keys::finish`], and what the work says.
    pub async fn once<T, E>(
        &self,
        tx: &mut T,
        key: &Key,
        payload: &Fingerprint,
        work: impl AsyncFnOnce(&mut T, &Run) -> Result<Answer, E>,
    ) -> Result<Outcome, E>
    where
        T: Transaction + ?Sized,
        E: From<Error>,
    {
        match self.claim(tx, key, payload).await? {
            Claimed::Run(run) => {
                let answer = work(tx, &run).await?;
                self.finish(tx, &run, &answer).await?;
                Ok(Outcome::Done(answer))
            }
            Claimed::Replay(answer) => Ok(Outcome::Replayed(answer)),
            Claimed::Busy { retry_after } => Ok(Outcome::Busy { retry_after }),
            Claimed::Mismatch => Ok(Outcome::Mismatch),
        }
    }
}
