//! To claim a key: begin its run, hear its answer, or take over from a run that fell silent.

use std::time::Instant;

use leasehold_core::Token;
use leasehold_sql::{Engine, Transaction, Value};

use super::known::{KeyRow, Known, Next};
use super::run::RecoveryPoint;
use super::table::{names, number, restart, timed};
use super::{Claimed, Fingerprint, Key, Keys, Run, TryId};
use crate::Result;

/// Each round begins where another transaction has changed the row in between.
const ROUNDS: usize = 4;

impl Keys {
    /// Claims a key, within the caller's transaction.
    ///
    /// The payload's fingerprint goes with it. What the answer means is for [`Claimed`]. Where the work is in the
    /// same transaction, go on; where it is not, commit, do it, and [`finish`](Keys::finish) in another one.
    ///
    /// While another transaction that has claimed the key is under way, the database lets this one wait until that
    /// ends, as long as its own settings allow (`lock_timeout`, `innodb_lock_wait_timeout`, `busy_timeout`).
    ///
    /// # Errors
    ///
    /// What the database says. [`Class::Restart`](leasehold_sql::Class::Restart): roll back and run the transaction again. After
    /// [`Class::Connection`](leasehold_sql::Class::Connection) it is unknown whether a commit was done: claim again with the same
    /// [`TryId`] ([`Keys::claim_as`]) to be given what that try had begun.
    pub async fn claim<T>(&self, tx: &mut T, key: &Key, payload: &Fingerprint) -> Result<Claimed>
    where
        T: Transaction + ?Sized,
    {
        self.claim_as(tx, key, payload, &TryId::random()?).await
    }

    /// As [`Keys::claim`], by a try that the caller named: asked again, it is given the run that it has begun.
    ///
    /// # Errors
    ///
    /// As [`Keys::claim`].
    pub async fn claim_as<T>(
        &self,
        tx: &mut T,
        key: &Key,
        payload: &Fingerprint,
        id: &TryId,
    ) -> Result<Claimed>
    where
        T: Transaction + ?Sized,
    {
        self.claim_known(tx, &Asked { key, payload, id }, false).await
    }

    /// As [`Keys::claim_as`]; where the key is known already, to look at it comes first.
    pub(super) async fn claim_known<T>(
        &self,
        tx: &mut T,
        asked: &Asked<'_>,
        known: bool,
    ) -> Result<Claimed>
    where
        T: Transaction + ?Sized,
    {
        for round in 0..ROUNDS {
            let known = match self.begin(tx, asked, round, known).await? {
                Begun::Made(token) => return Ok(Claimed::Run(asked.run(token, 1, None))),
                Begun::Known(known) => known,
            };
            let Some(row) = &known.row else { continue };
            let done = match known.next(asked.payload, asked.id) {
                Next::Make => None,
                Next::Mismatch => Some(Claimed::Mismatch),
                Next::Replay => Some(Claimed::Replay(row.answer.clone())),
                Next::Busy(retry_after) => Some(Claimed::Busy { retry_after }),
                Next::Mine => Some(self.again(tx, asked, row).await?),
                Next::BeginAnew => self.begin_anew(tx, asked, &known, row).await?,
                Next::TakeOver => self.take_over(tx, asked, &known, row).await?,
            };
            if let Some(done) = done {
                return Ok(done);
            }
        }
        Err(restart("the idempotency key was changed at every look"))
    }

    /// Makes the row of a key that nobody has asked for, or tells what is known of it.
    ///
    /// PostgreSQL says in one statement whether it made it, and with which token; elsewhere the clock is read
    /// first, which tells most of those that ask again what they want to know without a lock.
    async fn begin<T>(
        &self,
        tx: &mut T,
        asked: &Asked<'_>,
        round: usize,
        known: bool,
    ) -> Result<Begun>
    where
        T: Transaction + ?Sized,
    {
        if tx.engine() == Engine::Postgres {
            let made = if known && round == 0 { None } else { self.make(tx, asked, None).await? };
            if let Some(token) = made {
                return Ok(Begun::Made(token));
            }
            return Ok(Begun::Known(self.look(tx, asked.key).await?));
        }
        // At REPEATABLE READ on MySQL a plain look shows the same again.
        let locked = round > 0;
        let known = if locked {
            self.look_locked(tx, asked.key).await?
        } else {
            self.look(tx, asked.key).await?
        };
        if known.row.is_some() {
            return Ok(Begun::Known(known));
        }
        let token = known.next_token().ok_or_else(|| self.corrupt("a clock that is none"))?;
        if self.make(tx, asked, Some(token)).await?.is_some() {
            return Ok(Begun::Made(token));
        }
        Ok(Begun::Known(self.look_locked(tx, asked.key).await?))
    }

    async fn make<T>(
        &self,
        tx: &mut T,
        asked: &Asked<'_>,
        token: Option<Token>,
    ) -> Result<Option<Token>>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let began = Instant::now();
        let mut values = asked.names();
        values.push(asked.payload.as_bytes().to_vec().into());
        values.push(asked.id.as_bytes().to_vec().into());
        values.extend(token.map(number));
        values.push(self.term_us().into());
        values.push(self.keep_and_slack_us().into());
        let made = match token {
            None => {
                let rows = self.rows(tx, &self.texts(engine).make, &values).await?;
                let token = |row: &leasehold_sql::Row| Token::new(u64::try_from(row.int(0)?).ok()?);
                match rows.first() {
                    None => None,
                    Some(row) => {
                        Some(token(row).ok_or_else(|| self.corrupt("a token that is none"))?)
                    }
                }
            }
            Some(token) => {
                timed(engine, &mut values);
                let count = self.execute(tx, &self.texts(engine).make, &values).await?;
                // MySQL counts a row that was there already as two.
                (count == 1).then_some(token)
            }
        };
        // The term was written before a wait for another transaction, which has then been rolled back.
        if let Some(token) = made
            && began.elapsed() > self.term / 8
        {
            self.renew(tx, &asked.run(token, 1, None)).await?;
        }
        Ok(made)
    }

    async fn again<T>(&self, tx: &mut T, asked: &Asked<'_>, row: &KeyRow) -> Result<Claimed>
    where
        T: Transaction + ?Sized,
    {
        let run = asked.run(row.token, row.attempt, row.point.clone());
        self.renew(tx, &run).await?;
        Ok(Claimed::Run(run))
    }

    async fn take_over<T>(
        &self,
        tx: &mut T,
        asked: &Asked<'_>,
        known: &Known,
        row: &KeyRow,
    ) -> Result<Option<Claimed>>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let token = known.next_token().ok_or_else(|| self.corrupt("no tokens are left"))?;
        let mut values = vec![number(token), asked.id.as_bytes().to_vec().into()];
        values.push(self.term_us().into());
        values.push(self.keep_and_slack_us().into());
        values.extend(asked.names());
        values.push(number(row.token));
        timed(engine, &mut values);
        let taken = self.execute(tx, &self.texts(engine).take_over, &values).await? == 1;
        let attempt = row.attempt.saturating_add(1);
        Ok(taken.then(|| Claimed::Run(asked.run(token, attempt, row.point.clone()))))
    }

    async fn begin_anew<T>(
        &self,
        tx: &mut T,
        asked: &Asked<'_>,
        known: &Known,
        row: &KeyRow,
    ) -> Result<Option<Claimed>>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let token = known.next_token().ok_or_else(|| self.corrupt("no tokens are left"))?;
        let mut values = vec![number(token), asked.id.as_bytes().to_vec().into()];
        values.push(asked.payload.as_bytes().to_vec().into());
        values.push(self.term_us().into());
        values.push(self.keep_and_slack_us().into());
        values.extend(asked.names());
        values.push(number(row.token));
        timed(engine, &mut values);
        let begun = self.execute(tx, &self.texts(engine).begin_anew, &values).await? == 1;
        Ok(begun.then(|| Claimed::Run(asked.run(token, 1, None))))
    }
}

enum Begun {
    Made(Token),
    Known(Known),
}

/// What is claimed, with what, by which try.
pub(super) struct Asked<'a> {
    pub(super) key: &'a Key,
    pub(super) payload: &'a Fingerprint,
    pub(super) id: &'a TryId,
}

impl Asked<'_> {
    fn names(&self) -> Vec<Value> {
        names(self.key)
    }

    fn run(&self, token: Token, attempt: u32, point: Option<RecoveryPoint>) -> Run {
        let (key, fingerprint) = (self.key.clone(), *self.payload);
        Run { key, fingerprint, id: *self.id, token, attempt, point }
    }
}
