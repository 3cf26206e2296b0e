//! rusqlite: the work is done before the future is there, so that it can be sent and is ready at
//! once.

use std::future::ready;

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};

use crate::{Answer, Class, Connection, Engine, Error, Result, Row, Transaction, Value};

macro_rules! verbs {
    () => {
        fn engine(&self) -> Engine {
            Engine::Sqlite
        }

        fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
            Box::pin(ready(rows(self, statement, values)))
        }

        fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
            Box::pin(ready(execute(self, statement, values)))
        }
    };
}

impl Transaction for rusqlite::Transaction<'_> {
    verbs!();
}

impl Transaction for rusqlite::Savepoint<'_> {
    verbs!();
}

impl Connection for rusqlite::Connection {
    verbs!();
}

fn rows(db: &rusqlite::Connection, statement: &str, values: &[Value]) -> Result<Vec<Row>> {
    let mut prepared = db.prepare_cached(statement).map_err(failed)?;
    let columns = prepared.column_count();
    let mut answer = prepared.query(rusqlite::params_from_iter(values)).map_err(failed)?;
    let mut all = Vec::new();
    while let Some(row) = answer.next().map_err(failed)? {
        let values: Result<_> = (0..columns).map(|at| value_of(row, at)).collect();
        all.push(Row::new(values?));
    }
    Ok(all)
}

fn execute(db: &rusqlite::Connection, statement: &str, values: &[Value]) -> Result<u64> {
    let mut prepared = db.prepare_cached(statement).map_err(failed)?;
    if prepared.column_count() == 0 {
        let matched = prepared.execute(rusqlite::params_from_iter(values)).map_err(failed)?;
        return Ok(matched as u64);
    }
    // As the other drivers do, and rusqlite does not: rows that nobody asked for are dropped.
    let reads = prepared.readonly();
    let mut answer = prepared.query(rusqlite::params_from_iter(values)).map_err(failed)?;
    while answer.next().map_err(failed)?.is_some() {}
    Ok(if reads { 0 } else { db.changes() })
}

fn value_of(row: &rusqlite::Row<'_>, at: usize) -> Result<Value> {
    match row.get_ref(at).map_err(failed)? {
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(number) => Ok(Value::Int(number)),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Ok(text.into()),
            Err(_) => Err(Error::unread(at, "TEXT that is not UTF-8")),
        },
        ValueRef::Blob(bytes) => Ok(bytes.to_vec().into()),
        ValueRef::Real(_) => Err(Error::unread(at, "REAL")),
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Value::Null => Ok(ToSqlOutput::Owned(rusqlite::types::Value::Null)),
            Value::Int(number) => number.to_sql(),
            Value::Text(text) => text.to_sql(),
            Value::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

fn failed(error: rusqlite::Error) -> Error {
    // An error that points into the statement is of another shape, where SQLite is new enough.
    let code = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
    let code = code.map(|code: &rusqlite::ffi::Error| code.extended_code);
    let class = code.map_or(Class::Other, |code| Class::of_sqlite(code, &error.to_string()));
    Error::new(class, code.map(|code| code.to_string()), error)
}
