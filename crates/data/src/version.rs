//! A version column: who changes a row says which version of it they have seen.
//!
//! No lock is held between the read and the write, however long a person thinks in between. If somebody else was
//! first, the update changes nothing and says so: read again, decide again.
//!
//! ```
//! use leasehold_data::version::{Updated, Versioned};
//! use leasehold_sql::Transaction;
//!
//! async fn rename<T: Transaction>(tx: &mut T, id: i64, seen: i64, to: &str) -> leasehold_data::Result<bool> {
//!     let accounts = Versioned::new("account", "id", "version")?;
//!     match accounts.update(tx, id, seen, &[("name", to.into())]).await? {
//!         Updated::Changed { .. } => Ok(true),
//!         Updated::Stale { .. } => Ok(false), // show what it is now, ask again
//!         Updated::Missing => Ok(false),
//!     }
//! }
//! ```
//!
//! *When not:* on a row that many change at once most tries are in vain: use a conditional update
//! ([`Amounts`](crate::conditional::Amounts)) or lock the row.

use leasehold_sql::{Engine, Transaction};

use crate::name::{Name, Statement};
use crate::{Error, Param, Result, Table};

/// A table whose rows have a version: an integer that starts wherever it likes and rises by one with each change.
#[derive(Clone, Debug)]
pub struct Versioned {
    table: Table,
    id: Name,
    version: Name,
}

/// What became of a conditional update.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Updated {
    /// The row is changed.
    Changed {
        /// Its version now.
        version: i64,
    },
    /// Somebody else has changed it since; nothing is changed.
    Stale {
        /// Its version now.
        version: i64,
    },
    /// There is no such row.
    Missing,
}

impl Versioned {
    /// A table by its name, with its key column and its version column.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn new(table: &str, id: &str, version: &str) -> Result<Versioned> {
        Versioned::of(Table::new(table)?, id, version)
    }

    /// As [`Versioned::new`], of a table that may be in a schema.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn of(table: Table, id: &str, version: &str) -> Result<Versioned> {
        Ok(Versioned { table, id: Name::new(id)?, version: Name::new(version)? })
    }

    /// The version of a row, or `None` where there is no such row.
    ///
    /// # Errors
    ///
    /// What the database says; [`Error::NoColumn`] if the table has no such version column.
    pub async fn version<T>(&self, tx: &mut T, id: impl Into<Param>) -> Result<Option<i64>>
    where
        T: Transaction + ?Sized,
    {
        self.read(tx, &id.into(), "").await
    }

    /// Sets these columns of the row and raises its version, if it still is the version that was `seen`.
    ///
    /// # Errors
    ///
    /// What the database says: [`Class::Restart`](leasehold_sql::Class::Restart) at REPEATABLE READ if another
    /// was first; [`Error::NoColumn`] if the table has no such column; [`Error::Versions`] at the last version
    /// that there is.
    pub async fn update<T>(
        &self,
        tx: &mut T,
        id: impl Into<Param>,
        seen: i64,
        set: &[(&str, Param)],
    ) -> Result<Updated>
    where
        T: Transaction + ?Sized,
    {
        let id = id.into();
        let Some(version) = seen.checked_add(1) else { return Err(Error::Versions) };
        let mut statement = Statement::new(tx.engine());
        statement.sql("UPDATE ").table(&self.table).sql(" SET ");
        for (column, param) in set {
            statement.name(&Name::new(*column)?).sql(" = ").param(param).sql(", ");
        }
        statement.name(&self.version).sql(" = ").value(version);
        self.only(&mut statement, &id, seen);
        let changed = tx.execute(&statement.text, &statement.values).await;
        if changed.map_err(|error| self.failed(error, set))? > 0 {
            return Ok(Updated::Changed { version });
        }
        self.why_not(tx, &id, seen).await
    }

    /// Deletes the row, if it still is the version that was `seen`; that is then the version told.
    ///
    /// # Errors
    ///
    /// As [`Versioned::update`].
    pub async fn delete<T>(&self, tx: &mut T, id: impl Into<Param>, seen: i64) -> Result<Updated>
    where
        T: Transaction + ?Sized,
    {
        let id = id.into();
        let mut statement = Statement::new(tx.engine());
        statement.sql("DELETE FROM ").table(&self.table);
        self.only(&mut statement, &id, seen);
        let deleted = tx.execute(&statement.text, &statement.values).await;
        if deleted.map_err(|error| self.failed(error, &[]))? > 0 {
            return Ok(Updated::Changed { version: seen });
        }
        self.why_not(tx, &id, seen).await
    }

    fn only(&self, statement: &mut Statement, id: &Param, seen: i64) {
        statement.sql(" WHERE ").name(&self.id).sql(" = ").param(id);
        statement.sql(" AND ").name(&self.version).sql(" = ").value(seen);
    }

    async fn why_not<T>(&self, tx: &mut T, id: &Param, seen: i64) -> Result<Updated>
    where
        T: Transaction + ?Sized,
    {
        // At REPEATABLE READ on MySQL a plain read shows the row as it was, though an update goes by what it is.
        let newest = if tx.engine() == Engine::Mysql { " FOR UPDATE" } else { "" };
        match self.read(tx, id, newest).await? {
            None => Ok(Updated::Missing),
            Some(version) if version == seen => {
                let source = "the row was changed in between";
                let class = leasehold_sql::Class::Restart;
                Err(Error::Sql(leasehold_sql::Error::new(class, None, source)))
            }
            Some(version) => Ok(Updated::Stale { version }),
        }
    }

    async fn read<T>(&self, tx: &mut T, id: &Param, lock: &str) -> Result<Option<i64>>
    where
        T: Transaction + ?Sized,
    {
        let mut statement = Statement::new(tx.engine());
        statement.sql("SELECT ").integer(&self.version).sql(" FROM ").table(&self.table);
        statement.sql(" WHERE ").name(&self.id).sql(" = ").param(id).sql(lock);
        let rows = tx.rows(&statement.text, &statement.values).await;
        let rows = rows.map_err(|error| self.failed(error, &[]))?;
        let Some(row) = rows.first() else { return Ok(None) };
        let what = "its version is no integer";
        row.int(0).map(Some).ok_or_else(|| Error::Corrupt { table: self.table.to_string(), what })
    }

    fn failed(&self, error: leasehold_sql::Error, set: &[(&str, Param)]) -> Error {
        let own = [self.id.as_str(), self.version.as_str()];
        let names: Vec<&str> = own.into_iter().chain(set.iter().map(|(name, _)| *name)).collect();
        Error::on(&self.table.to_string(), &names.join(", "), error)
    }
}
