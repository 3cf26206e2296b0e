//! The statements, run.

use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_core::Token;
use leasehold_sql::{Class, Engine, Row, Transaction, Value};

use super::known::Known;
use super::{Key, Keys};
use crate::{Error, Result};

/// What an error says of a table that lacks a column.
const COLUMNS: &str = "those of `Keys::table_text`";

impl Keys {
    pub(super) async fn rows<T>(&self, tx: &mut T, text: &str, values: &[Value]) -> Result<Vec<Row>>
    where
        T: Transaction + ?Sized,
    {
        tx.rows(text, values).await.map_err(|error| self.failed(error))
    }

    pub(super) async fn execute<T>(&self, tx: &mut T, text: &str, values: &[Value]) -> Result<u64>
    where
        T: Transaction + ?Sized,
    {
        tx.execute(text, values).await.map_err(|error| self.failed(error))
    }

    pub(super) async fn look<T>(&self, tx: &mut T, key: &Key) -> Result<Known>
    where
        T: Transaction + ?Sized,
    {
        let text = &self.texts(tx.engine()).look;
        self.known(tx, text, key).await?.ok_or_else(|| self.corrupt("no answer"))
    }

    /// The newest of the row, also where the isolation level shows older ones; then locked, on MySQL.
    pub(super) async fn look_locked<T>(&self, tx: &mut T, key: &Key) -> Result<Known>
    where
        T: Transaction + ?Sized,
    {
        let text = &self.texts(tx.engine()).look_locked;
        match self.known(tx, text, key).await? {
            Some(known) => Ok(known),
            None => self.look(tx, key).await,
        }
    }

    async fn known<T>(&self, tx: &mut T, text: &str, key: &Key) -> Result<Option<Known>>
    where
        T: Transaction + ?Sized,
    {
        let mut values = names(key);
        timed(tx.engine(), &mut values);
        let rows = self.rows(tx, text, &values).await?;
        rows.first().map(|row| Known::read(row, self.table_name())).transpose()
    }

    pub(super) fn corrupt(&self, what: &'static str) -> Error {
        Error::Corrupt { table: self.table_name().to_owned(), what }
    }

    fn failed(&self, error: leasehold_sql::Error) -> Error {
        Error::on(self.table_name(), COLUMNS, error)
    }
}

/// The transaction is to be run again.
pub(super) fn restart(why: &'static str) -> Error {
    Error::Sql(leasehold_sql::Error::new(Class::Restart, None, why))
}

/// The two values that name a row.
pub(super) fn names(key: &Key) -> Vec<Value> {
    vec![key.scope().into(), key.key().into()]
}

pub(super) fn number(token: Token) -> Value {
    // A token is below 2^53.
    Value::Int(i64::try_from(token.get()).unwrap_or(i64::MAX))
}

/// SQLite's statements are told the time: all who share a file share a machine and its clock, and SQLite's own
/// clock counts milliseconds. Servers read theirs.
pub(super) fn timed(engine: Engine, values: &mut Vec<Value>) {
    if engine == Engine::Sqlite {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        values.push(Value::Int(i64::try_from(now.as_micros()).unwrap_or(i64::MAX)));
    }
}
