//! sqlx over PostgreSQL.

use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgConnection, PgRow, PgTypeInfo, Postgres};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column as _, Row as _, Type, TypeInfo as _};

use super::verbs;
use crate::{Answer, Class, Connection, Engine, Error, Result, Row, Transaction, Value};

impl Transaction for sqlx::Transaction<'_, Postgres> {
    verbs!(Engine::Postgres, |tx| &mut **tx);
}

impl Connection for PgConnection {
    verbs!(Engine::Postgres, |connection| connection);
}

async fn rows(db: &mut PgConnection, statement: &str, values: &[Value]) -> Result<Vec<Row>> {
    let rows = query(statement, values)?.fetch_all(db).await.map_err(failed)?;
    rows.iter().map(row_of).collect()
}

async fn execute(db: &mut PgConnection, statement: &str, values: &[Value]) -> Result<u64> {
    let done = query(statement, values)?.execute(db).await.map_err(failed)?;
    Ok(done.rows_affected())
}

fn query<'a>(statement: &str, values: &'a [Value]) -> Result<Query<'a, Postgres, PgArguments>> {
    let mut query = sqlx::query(AssertSqlSafe(statement));
    for value in values {
        query.try_bind(Bound(value)).map_err(unsent)?;
    }
    // A statement is kept under its text, with the types of its first values. NULL has none, and
    // must not decide how later values are read.
    Ok(query.persistent(!values.contains(&Value::Null)))
}

fn unsent(error: BoxDynError) -> Error {
    Error::new(Class::Other, None, error)
}

struct Bound<'a>(&'a Value);

/// The type of what has none yet: the server gives it one.
const UNKNOWN: Oid = Oid(705);

impl Type<Postgres> for Bound<'_> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UNKNOWN)
    }
}

impl Encode<'_, Postgres> for Bound<'_> {
    fn produces(&self) -> Option<PgTypeInfo> {
        Some(match self.0 {
            Value::Null => PgTypeInfo::with_oid(UNKNOWN),
            Value::Int(_) => <i64 as Type<Postgres>>::type_info(),
            Value::Text(_) => <str as Type<Postgres>>::type_info(),
            Value::Bytes(_) => <[u8] as Type<Postgres>>::type_info(),
        })
    }

    fn encode_by_ref(&self, out: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        match self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(number) => <i64 as Encode<'_, Postgres>>::encode_by_ref(number, out),
            Value::Text(text) => <&str as Encode<'_, Postgres>>::encode_by_ref(&&**text, out),
            Value::Bytes(bytes) => <&[u8] as Encode<'_, Postgres>>::encode_by_ref(&&**bytes, out),
        }
    }
}

fn row_of(row: &PgRow) -> Result<Row> {
    let mut values = Vec::with_capacity(row.len());
    for (at, column) in row.columns().iter().enumerate() {
        let value = match column.type_info().name() {
            "INT8" => row.try_get::<Option<i64>, _>(at).map(Value::from),
            "INT4" => row.try_get::<Option<i32>, _>(at).map(|n| n.map(i64::from).into()),
            "INT2" => row.try_get::<Option<i16>, _>(at).map(|n| n.map(i64::from).into()),
            "BOOL" => row.try_get::<Option<bool>, _>(at).map(|is| is.map(i64::from).into()),
            "BYTEA" => row.try_get::<Option<Vec<u8>>, _>(at).map(Value::from),
            "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "UNKNOWN" => {
                row.try_get::<Option<String>, _>(at).map(Value::from)
            }
            // What a function answers that answers nothing, as pg_advisory_xact_lock.
            "VOID" => Ok(Value::Null),
            other => return Err(Error::unread(at, other)),
        };
        values.push(value.map_err(failed)?);
    }
    Ok(Row::new(values))
}

fn failed(error: sqlx::Error) -> Error {
    super::failed(error, |error| {
        let code = error.as_database_error()?.code()?.into_owned();
        Some((Class::of_postgres(&code), code))
    })
}
