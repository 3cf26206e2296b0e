//! sqlx over SQLite.

use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, TypeInfo as _, ValueRef as _};

use super::verbs;
use crate::{Answer, Class, Connection, Engine, Error, Result, Row, Transaction, Value};

impl Transaction for sqlx::Transaction<'_, Sqlite> {
    verbs!(Engine::Sqlite, |tx| &mut **tx);
}

impl Connection for SqliteConnection {
    verbs!(Engine::Sqlite, |connection| connection);
}

async fn rows(db: &mut SqliteConnection, statement: &str, values: &[Value]) -> Result<Vec<Row>> {
    let rows = query(statement, values).fetch_all(db).await.map_err(failed)?;
    rows.iter().map(row_of).collect()
}

async fn execute(db: &mut SqliteConnection, statement: &str, values: &[Value]) -> Result<u64> {
    let done = query(statement, values).execute(db).await.map_err(failed)?;
    Ok(done.rows_affected())
}

fn query<'a>(statement: &str, values: &'a [Value]) -> Query<'a, Sqlite, SqliteArguments> {
    let query = sqlx::query(AssertSqlSafe(statement));
    values.iter().fold(query, |query, value| match value {
        Value::Null => query.bind(None::<i64>),
        Value::Int(number) => query.bind(*number),
        Value::Text(text) => query.bind(&**text),
        Value::Bytes(bytes) => query.bind(&**bytes),
    })
}

fn row_of(row: &SqliteRow) -> Result<Row> {
    let mut values = Vec::with_capacity(row.len());
    for at in 0..row.len() {
        let value = row.try_get_raw(at).map_err(failed)?;
        let kind = value.type_info();
        let value = match kind.name() {
            _ if value.is_null() => Ok(Value::Null),
            "INTEGER" => row.try_get_unchecked::<i64, _>(at).map(Value::from),
            "TEXT" => row.try_get_unchecked::<String, _>(at).map(Value::from),
            "BLOB" => row.try_get_unchecked::<Vec<u8>, _>(at).map(Value::from),
            other => return Err(Error::unread(at, other)),
        };
        values.push(value.map_err(failed)?);
    }
    Ok(Row::new(values))
}

fn failed(error: sqlx::Error) -> Error {
    super::failed(error, |error| {
        let told = error.as_database_error()?;
        let code = told.code()?.into_owned();
        let class = Class::of_sqlite(code.parse().ok()?, told.message());
        Some((class, code))
    })
}
