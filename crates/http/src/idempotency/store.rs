//! Where keys and answers are kept.

use std::time::Duration;

use async_trait::async_trait;
use leasehold_data::Error;
use leasehold_data::idempotency::{Answer, Claimed, Fingerprint, Key, Keys, Run, TryId};
use leasehold_sql::Transaction;

use crate::body::BoxError;
use crate::database::{Database, Step};

/// Keeps keys, and the answers of those that are done. Ready-made: [`SqlKeys`].
#[async_trait]
pub trait KeyStore: Send + Sync + 'static {
    /// How long a run may be silent before another takes over.
    fn term(&self) -> Duration;

    /// Claims a key for this try.
    ///
    /// # Behavior
    ///
    /// - It is committed when this returns.
    /// - A try that asks again is given the run that it has begun: its reply may have been lost.
    async fn claim(
        &self,
        key: &Key,
        payload: &Fingerprint,
        id: &TryId,
    ) -> Result<Claimed, BoxError>;

    /// Says that a run still works: it has a whole term again.
    async fn renew(&self, run: &Run) -> Result<(), Ended>;

    /// Stores the answer of a run.
    async fn finish(&self, run: &Run, answer: &Answer) -> Result<(), Ended>;

    /// Gives a run up: the next claim goes on from its last recovery point, at once.
    async fn give_up(&self, run: &Run) -> Result<(), Ended>;

    /// Forgets that the key was ever used.
    async fn forget(&self, run: &Run) -> Result<(), Ended>;
}

/// Why a run was not heard.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// Another run has taken over, or the key is not known any more.
    TakenOver,
    /// It has finished: its handler stored the answer, or an earlier call did whose reply was lost.
    Finished,
    /// The answer is larger than the store keeps.
    TooLarge,
    /// It is not known whether it was heard.
    Unknown(BoxError),
}

/// [`Keys`] in the service's own database.
#[derive(Debug)]
pub struct SqlKeys<D> {
    keys: Keys,
    database: D,
}

impl<D: Database> SqlKeys<D> {
    /// Keeps these keys there. The table must exist: [`Keys::create_table`], or
    /// [`Keys::table_text`] in a migration.
    pub fn new(keys: Keys, database: D) -> SqlKeys<D> {
        SqlKeys { keys, database }
    }
}

#[async_trait]
impl<D: Database> KeyStore for SqlKeys<D> {
    fn term(&self) -> Duration {
        self.keys.run_term()
    }

    async fn claim(
        &self,
        key: &Key,
        payload: &Fingerprint,
        id: &TryId,
    ) -> Result<Claimed, BoxError> {
        let mut claim = Claim { keys: &self.keys, key, payload, id, claimed: None };
        self.database.within(&mut claim).await?;
        claim.claimed.ok_or_else(|| "the database committed without running the step".into())
    }

    async fn renew(&self, run: &Run) -> Result<(), Ended> {
        self.say(run, Word::Renew).await
    }

    async fn finish(&self, run: &Run, answer: &Answer) -> Result<(), Ended> {
        self.say(run, Word::Finish(answer)).await
    }

    async fn give_up(&self, run: &Run) -> Result<(), Ended> {
        self.say(run, Word::GiveUp).await
    }

    async fn forget(&self, run: &Run) -> Result<(), Ended> {
        self.say(run, Word::Forget).await
    }
}

impl<D: Database> SqlKeys<D> {
    async fn say(&self, run: &Run, word: Word<'_>) -> Result<(), Ended> {
        let mut say = Say { keys: &self.keys, run, word };
        self.database.within(&mut say).await.map_err(ended)
    }
}

struct Claim<'a> {
    keys: &'a Keys,
    key: &'a Key,
    payload: &'a Fingerprint,
    id: &'a TryId,
    claimed: Option<Claimed>,
}

#[async_trait]
impl Step for Claim<'_> {
    async fn run(&mut self, tx: &mut (dyn Transaction + Send)) -> Result<(), BoxError> {
        self.claimed = None;
        self.claimed = Some(self.keys.claim_as(tx, self.key, self.payload, self.id).await?);
        Ok(())
    }
}

/// What a run says of itself.
struct Say<'a> {
    keys: &'a Keys,
    run: &'a Run,
    word: Word<'a>,
}

enum Word<'a> {
    Renew,
    Finish(&'a Answer),
    GiveUp,
    Forget,
}

#[async_trait]
impl Step for Say<'_> {
    async fn run(&mut self, tx: &mut (dyn Transaction + Send)) -> Result<(), BoxError> {
        match self.word {
            Word::Renew => self.keys.renew(tx, self.run).await?,
            Word::Finish(answer) => self.keys.finish(tx, self.run, answer).await?,
            Word::GiveUp => self.keys.give_up(tx, self.run).await?,
            Word::Forget => self.keys.forget(tx, self.run).await?,
        }
        Ok(())
    }
}

fn ended(error: BoxError) -> Ended {
    match error.downcast_ref::<Error>() {
        Some(Error::TakenOver { .. } | Error::Forgotten) => Ended::TakenOver,
        Some(Error::Finished) => Ended::Finished,
        Some(Error::AnswerTooLarge { .. }) => Ended::TooLarge,
        _ => Ended::Unknown(error),
    }
}
