//! Insert a row under a unique key, or find the one that is there: every contender is given the same answer.
//!
//! The unique key of the table decides who was first, so there is nothing to lock. What the row holds beside the
//! key is compared: who comes with the same key and another payload is told so, and given nothing.
//!
//! ```
//! use leasehold_data::unique::{Found, Unique};
//! use leasehold_sql::Transaction;
//!
//! async fn register<T: Transaction>(tx: &mut T, email: &str, name: &str) -> leasehold_data::Result<Option<i64>> {
//!     let users = Unique::new("users", &["email"])?.answer("id")?;
//!     match users.insert_or_find(tx, &[email.into()], &[("name", name.into())]).await? {
//!         Found::Inserted(row) | Found::Same(row) => Ok(row.int(0)),
//!         Found::Other { .. } => Ok(None), // the address is somebody else's
//!     }
//! }
//! ```
//!
//! *When not:* for an answer that is more than the row, as an HTTP response, use an idempotency key
//! ([`idempotency`](crate::idempotency)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold_sql::{Class, Engine, Row, Transaction, Value};

use crate::name::{Name, Statement};
use crate::{Error, Param, Result, Table};

/// A round begins anew where the row was deleted in between.
const ROUNDS: usize = 4;

/// A table with a unique key.
#[derive(Clone, Debug)]
pub struct Unique {
    table: Table,
    key: Vec<Name>,
    answer: Vec<(Name, Option<String>)>,
    /// MySQL, which lets a conflict be named by no columns, was asked whether there is such a key.
    checked: Arc<AtomicBool>,
}

/// What became of an insert.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The row is new.
    Inserted(Row),
    /// It was there, with the same payload.
    Same(Row),
    /// It was there, with another payload. Nothing is changed.
    Other {
        /// The first column that differs.
        column: String,
    },
}

impl Unique {
    /// A table by its name, with the columns of its unique key.
    ///
    /// # Errors
    ///
    /// [`Error::Name`]; [`Error::TooMany`] for no column or more than 16.
    pub fn new(table: &str, key: &[&str]) -> Result<Unique> {
        Unique::of(Table::new(table)?, key)
    }

    /// As [`Unique::new`], of a table that may be in a schema.
    ///
    /// # Errors
    ///
    /// As [`Unique::new`].
    pub fn of(table: Table, key: &[&str]) -> Result<Unique> {
        if key.is_empty() || key.len() > 16 {
            return Err(Error::TooMany { what: "columns of a key", count: key.len(), most: 16 });
        }
        let key: Result<_> = key.iter().map(|column| Name::new(*column)).collect();
        Ok(Unique { table, key: key?, answer: Vec::new(), checked: Arc::default() })
    }

    /// One more column that the answer has: an integer, a text or bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn answer(mut self, column: &str) -> Result<Unique> {
        self.answer.push((Name::new(column)?, None));
        Ok(self)
    }

    /// One more column that the answer has, cast to a type: a UUID to `text` (on MySQL `char`).
    ///
    /// # Errors
    ///
    /// [`Error::Name`].
    pub fn answer_as(mut self, column: &str, to: &str) -> Result<Unique> {
        let cast = Param::cast(to, Value::Null)?.cast;
        self.answer.push((Name::new(column)?, cast));
        Ok(self)
    }

    /// Inserts a row of this key and payload, or finds the one that is there and compares its payload.
    ///
    /// A text is compared byte by byte, whatever the collation of its column. Give a column of a type of its own,
    /// such as a number with a fraction or JSON, as [`Param::cast`].
    ///
    /// While another transaction that has inserted the key is under way, the database lets this one wait until
    /// that ends.
    ///
    /// # Errors
    ///
    /// [`Error::NoUniqueKey`]; [`Error::TooMany`] if there are not as many values as columns of the key. What the
    /// database says: [`Class::Restart`] at REPEATABLE READ on PostgreSQL if another was first,
    /// [`Class::Deadlock`] on MySQL if several waited for one that was rolled back, [`Class::Duplicate`] for
    /// another unique key of the table.
    pub async fn insert_or_find<T>(
        &self,
        tx: &mut T,
        key: &[Param],
        payload: &[(&str, Param)],
    ) -> Result<Found>
    where
        T: Transaction + ?Sized,
    {
        let (count, most) = (key.len(), self.key.len());
        if count != most {
            return Err(Error::TooMany { what: "values of the key", count, most });
        }
        let named = payload.iter().map(|(column, param)| Ok((Name::new(*column)?, param)));
        let payload: Vec<(Name, &Param)> = named.collect::<Result<_>>()?;
        if tx.engine() == Engine::Mysql {
            self.check(tx).await?;
        }
        for _ in 0..ROUNDS {
            let duplicate = match self.insert(tx, key, &payload).await? {
                Inserted::Row(row) => return Ok(Found::Inserted(row)),
                Inserted::Not(duplicate) => duplicate,
            };
            match (self.find(tx, key, &payload).await?, duplicate) {
                (Some(found), _) => return Ok(found),
                // Of this key there is none: it is another key of the table that was there already.
                (None, Some(error)) => return Err(self.failed(error)),
                (None, None) => {}
            }
        }
        let source = "the row came and went at every look";
        Err(Error::Sql(leasehold_sql::Error::new(Class::Restart, None, source)))
    }

    async fn insert<T>(
        &self,
        tx: &mut T,
        key: &[Param],
        payload: &[(Name, &Param)],
    ) -> Result<Inserted>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let mut insert = Statement::new(engine);
        insert.sql("INSERT INTO ").table(&self.table).sql(" (");
        let columns = self.key.iter().chain(payload.iter().map(|(column, _)| column));
        insert.each(columns, |insert, column| insert.name(column)).sql(") VALUES (");
        let params = key.iter().chain(payload.iter().map(|(_, param)| *param));
        insert.each(params, |insert, param| insert.param(param)).sql(")");
        if engine == Engine::Mysql {
            return match tx.execute(&insert.text, &insert.values).await {
                Ok(_) => Ok(Inserted::Row(self.inserted(tx, key).await?)),
                Err(error) if error.class() == Class::Duplicate => Ok(Inserted::Not(Some(error))),
                Err(error) => Err(self.failed(error)),
            };
        }
        insert.sql(" ON CONFLICT (").each(&self.key, |insert, column| insert.name(column));
        insert.sql(") DO NOTHING RETURNING ");
        self.answered(&mut insert);
        let mut rows = self.rows(tx, &insert).await?;
        Ok(rows.pop().map_or(Inserted::Not(None), |row| Inserted::Row(self.only_answer(&row))))
    }

    /// The row that this transaction has just inserted, where the insert cannot tell it.
    async fn inserted<T>(&self, tx: &mut T, key: &[Param]) -> Result<Row>
    where
        T: Transaction + ?Sized,
    {
        if self.answer.is_empty() {
            return Ok(Row::new(Vec::new()));
        }
        let mut select = Statement::new(tx.engine());
        select.sql("SELECT ");
        self.answered(&mut select);
        self.put_where(&mut select, key);
        let rows = self.rows(tx, &select).await?;
        let what = "a row that was inserted is not found under its key";
        let lost = || Error::Corrupt { table: self.table.to_string(), what };
        rows.first().map(|row| self.only_answer(row)).ok_or_else(lost)
    }

    async fn find<T>(
        &self,
        tx: &mut T,
        key: &[Param],
        payload: &[(Name, &Param)],
    ) -> Result<Option<Found>>
    where
        T: Transaction + ?Sized,
    {
        let engine = tx.engine();
        let mut select = Statement::new(engine);
        select.sql("SELECT ");
        self.answered(&mut select);
        for (column, param) in payload {
            select.sql(", ").same(column, param);
        }
        self.put_where(&mut select, key);
        if engine == Engine::Mysql {
            // The newest, also at REPEATABLE READ; the insert in vain has shared the row's lock already.
            select.sql(" LOCK IN SHARE MODE");
        }
        let rows = self.rows(tx, &select).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let compared = self.answer.len().max(1);
        let differs = (0..payload.len()).find(|at| row.int(compared + at) != Some(1));
        Ok(Some(match differs.and_then(|at| payload.get(at)) {
            Some((column, _)) => Found::Other { column: column.as_str().to_owned() },
            None => Found::Same(self.only_answer(row)),
        }))
    }

    fn put_where(&self, select: &mut Statement, key: &[Param]) {
        select.sql(" FROM ").table(&self.table);
        for (at, (column, param)) in self.key.iter().zip(key).enumerate() {
            select.sql(if at == 0 { " WHERE " } else { " AND " });
            select.name(column).sql(" = ").param(param);
        }
    }

    /// The columns of the answer, or something in their place.
    fn answered(&self, statement: &mut Statement) {
        if self.answer.is_empty() {
            statement.sql("1");
        }
        statement.each(&self.answer, |statement, (column, cast)| match cast {
            Some(to) => statement.sql("CAST(").name(column).sql(" AS ").sql(to).sql(")"),
            None => statement.name(column),
        });
    }

    fn only_answer(&self, row: &Row) -> Row {
        Row::new((0..self.answer.len()).filter_map(|at| row.get(at).cloned()).collect())
    }

    /// Asks MySQL, once, whether there is a unique key over just these columns: it would insert two without a word.
    async fn check<T>(&self, tx: &mut T) -> Result<()>
    where
        T: Transaction + ?Sized,
    {
        if self.checked.load(Ordering::Relaxed) {
            return Ok(());
        }
        let schema = self.table.schema().map_or(Value::Null, |schema| schema.into());
        let values = [schema, self.table.name().into()];
        let rows = tx.rows(include_str!("unique/mysql/keys.sql"), &values).await;
        let rows = rows.map_err(|error| self.failed(error))?;
        let folded = |names: &mut dyn Iterator<Item = &str>| {
            let mut names: Vec<String> = names.map(str::to_lowercase).collect();
            names.sort();
            names
        };
        let ours = folded(&mut self.key.iter().map(Name::as_str));
        let mut keys: std::collections::BTreeMap<&str, Vec<&str>> =
            std::collections::BTreeMap::new();
        for row in &rows {
            if let (Some(index), Some(column)) = (row.text(0), row.text(1)) {
                keys.entry(index).or_default().push(column);
            }
        }
        if !keys.values().any(|columns| folded(&mut columns.iter().copied()) == ours) {
            // A table that is not there has no key either; the insert tells the one from the other.
            return if rows.is_empty() { Ok(()) } else { Err(self.no_key(None)) };
        }
        self.checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn rows<T>(&self, tx: &mut T, statement: &Statement) -> Result<Vec<Row>>
    where
        T: Transaction + ?Sized,
    {
        tx.rows(&statement.text, &statement.values).await.map_err(|error| self.failed(error))
    }

    fn columns(&self) -> String {
        self.key.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
    }

    fn no_key(&self, source: Option<leasehold_sql::Error>) -> Error {
        Error::NoUniqueKey { table: self.table.to_string(), columns: self.columns(), source }
    }

    fn failed(&self, error: leasehold_sql::Error) -> Error {
        // SQLite has no code for it.
        let sqlite = "ON CONFLICT clause does not match";
        let said = std::error::Error::source(&error).map(ToString::to_string);
        if error.code() == Some("42P10") || said.is_some_and(|said| said.contains(sqlite)) {
            return self.no_key(Some(error));
        }
        Error::on(&self.table.to_string(), &self.columns(), error)
    }
}

enum Inserted {
    Row(Row),
    /// On MySQL with what it said, for it does not say of which key.
    Not(Option<leasehold_sql::Error>),
}
