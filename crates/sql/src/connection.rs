//! Transactions that the caller began by hand, on a plain connection.

use crate::{Answer, Class, Engine, Error, Result, Row, Transaction, Value};

/// One connection of a driver, in whatever transaction it is or is not.
///
/// [`Begun`] makes a [`Transaction`] of it.
pub trait Connection {
    /// Whose SQL it speaks.
    fn engine(&self) -> Engine;

    /// As [`Transaction::rows`].
    ///
    /// # Errors
    ///
    /// What the database or the driver said, with its [`Class`].
    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>>;

    /// As [`Transaction::execute`].
    ///
    /// # Errors
    ///
    /// What the database or the driver said, with its [`Class`].
    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64>;
}

/// A transaction begun by hand: by BEGIN on a plain connection, or by a driver's own means.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "rusqlite-0_40")] {
/// use leasehold_sql::{Begun, Class, now};
///
/// let mut db = rusqlite::Connection::open_in_memory()?;
/// let refused = now(Begun::on(&mut db)).unwrap_err();
/// assert_eq!(refused.class(), Class::NoTransaction);
///
/// db.execute_batch("BEGIN IMMEDIATE")?;
/// let begun = now(Begun::on(&mut db))?; // goes where a `Transaction` is asked for
/// # drop(begun);
/// db.execute_batch("COMMIT")?;
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Begun<'a, C: ?Sized>(&'a mut C);

impl<'a, C: Connection + ?Sized> Begun<'a, C> {
    /// Makes sure that there is a transaction: without one, a lock or a check would end with its
    /// own statement and protect nothing.
    ///
    /// Costs two round trips on PostgreSQL and MySQL, and leaves nothing behind. MySQL without
    /// `autocommit` is always in a transaction.
    ///
    /// Cancel safety: dropped before it has answered, the transaction is to be rolled back.
    ///
    /// # Errors
    ///
    /// [`Class::NoTransaction`]; [`Class::Aborted`] where it has failed already; else what the
    /// database said.
    pub async fn on(connection: &'a mut C) -> Result<Begun<'a, C>> {
        if in_transaction(connection).await? {
            return Ok(Begun(connection));
        }
        let advice = "a lock or a check outside of one ends with its own statement; BEGIN first";
        Err(Error::new(Class::NoTransaction, None, advice))
    }
}

/// MySQL: there is no such savepoint, since one outside a transaction is not kept.
const NO_SAVEPOINT: &str = "1305";

async fn in_transaction<C: Connection + ?Sized>(connection: &mut C) -> Result<bool> {
    if connection.engine() == Engine::Sqlite {
        // Refused within a transaction, and only there.
        return match connection.execute("BEGIN", &[]).await {
            Ok(_) => connection.execute("ROLLBACK", &[]).await.map(|_| false),
            Err(error) if error.code() == Some("1") => Ok(true),
            Err(error) => Err(error),
        };
    }
    match connection.execute("SAVEPOINT leasehold_begun", &[]).await {
        Ok(_) => {}
        Err(error) if error.class() == Class::NoTransaction => return Ok(false),
        Err(error) => return Err(error),
    }
    match connection.execute("RELEASE SAVEPOINT leasehold_begun", &[]).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(NO_SAVEPOINT) => Ok(false),
        Err(error) => Err(error),
    }
}

impl<C: Connection + ?Sized> Transaction for Begun<'_, C> {
    fn engine(&self) -> Engine {
        self.0.engine()
    }

    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
        self.0.rows(statement, values)
    }

    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
        self.0.execute(statement, values)
    }
}
