//! What a run says of itself: how far it has come, that it still works, its answer, or that it gives up.

use leasehold_sql::{Transaction, Value};

use super::known::State;
use super::run::RecoveryPoint;
use super::table::{names, number, restart, timed};
use super::{Answer, Keys, Run};
use crate::{Error, Result};

/// The most that a recovery point keeps.
const LARGEST_STATE: usize = 64 * 1024;

impl Keys {
    /// Stores the answer of a run. From the commit on, every claim of the key is given it.
    ///
    /// Do it in the transaction of the last local work, and commit only if it went well: a run that was taken over
    /// may not finish, and what it did in this transaction must vanish with it.
    ///
    /// # Errors
    ///
    /// [`Error::TakenOver`], [`Error::Finished`] and [`Error::Forgotten`]: roll back.
    /// [`Error::AnswerTooLarge`], and what the database says.
    pub async fn finish<T>(&self, tx: &mut T, run: &Run, answer: &Answer) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        self.fits(answer)?;
        let values = vec![
            i64::from(answer.status).into(),
            answer.head.clone().into(),
            answer.body.clone().into(),
            self.keep_us().into(),
            self.keep_and_slack_us().into(),
        ];
        let text = &self.texts(tx.engine()).finish;
        self.as_run(tx, run, text, values, true).await
    }

    pub(super) fn fits(&self, answer: &Answer) -> Result<()> {
        let (length, limit) = (answer.size(), self.limit);
        if length > limit { Err(Error::AnswerTooLarge { length, limit }) } else { Ok(()) }
    }

    /// Notes how far a run has come, for the one that takes over if this one crashes; and renews it.
    ///
    /// Commit it before the next step that cannot be undone, and pass [`Run::step`] on with each such step: between
    /// a step and its recovery point a crash leaves open whether the step was done.
    ///
    /// # Errors
    ///
    /// As [`Keys::finish`]; [`Error::PointName`] and [`Error::StateTooLarge`].
    pub async fn recovery_point<T>(
        &self,
        tx: &mut T,
        run: &mut Run,
        name: &str,
        state: &[u8],
    ) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        let length = name.len();
        if length == 0 || length > 255 {
            return Err(Error::PointName { length });
        }
        if name.contains('\0') {
            return Err(Error::Nul { what: "name of a recovery point" });
        }
        if state.len() > LARGEST_STATE {
            return Err(Error::StateTooLarge { length: state.len() });
        }
        let values = vec![name.into(), state.to_vec().into(), self.term_us().into()];
        self.as_run(tx, run, &self.texts(tx.engine()).point, values, true).await?;
        run.point = Some(RecoveryPoint { name: name.to_owned(), state: state.to_vec() });
        Ok(())
    }

    /// Says that a run still works: it has a whole term again from now.
    ///
    /// # Errors
    ///
    /// As [`Keys::finish`]: stop working, another does.
    pub async fn renew<T>(&self, tx: &mut T, run: &Run) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        let values = vec![self.term_us().into()];
        self.as_run(tx, run, &self.texts(tx.engine()).renew, values, true).await
    }

    /// Gives a run up, as a crash would but without the wait: the next claim takes over at once, and goes on at the
    /// recovery point.
    ///
    /// # Errors
    ///
    /// As [`Keys::finish`].
    pub async fn give_up<T>(&self, tx: &mut T, run: &Run) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        self.as_run(tx, run, &self.texts(tx.engine()).give_up, Vec::new(), false).await
    }

    /// Forgets that the key was ever used: the next claim begins anew, with whatever payload. For a run that has
    /// done nothing, as when the payload turned out to be invalid.
    ///
    /// # Errors
    ///
    /// As [`Keys::finish`].
    pub async fn forget<T>(&self, tx: &mut T, run: &Run) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        self.as_run(tx, run, &self.texts(tx.engine()).forget, Vec::new(), false).await
    }

    /// Runs a statement that changes the row of this run alone; `clocked` if it is told the time where the engine
    /// does not read it.
    async fn as_run<T>(
        &self,
        tx: &mut T,
        run: &Run,
        text: &str,
        mut values: Vec<Value>,
        clocked: bool,
    ) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        values.extend(names(&run.key));
        values.push(number(run.token));
        if clocked {
            timed(tx.engine(), &mut values);
        }
        match self.execute(tx, text, &values).await? {
            0 => Err(self.why_not(tx, run).await?),
            _ => Ok(()),
        }
    }

    async fn why_not<T>(&self, tx: &mut T, run: &Run) -> Result<Error>
    where
        T: Transaction + ?Sized,
    {
        let known = self.look_locked(tx, &run.key).await?;
        Ok(match known.row {
            Some(row) if row.token > run.token => Error::TakenOver { newer: row.token },
            Some(row) if row.token == run.token && row.state == State::Finished => Error::Finished,
            Some(row) if row.token == run.token && row.state == State::Running => {
                restart("the idempotency key was changed in between")
            }
            _ => Error::Forgotten,
        })
    }
}
