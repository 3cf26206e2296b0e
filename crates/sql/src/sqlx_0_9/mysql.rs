//! sqlx over MySQL and MariaDB.

use sqlx::encode::{Encode, IsNull};
use sqlx::error::BoxDynError;
use sqlx::mysql::{
    MySql, MySqlArguments, MySqlConnection, MySqlDatabaseError, MySqlRow, MySqlTypeInfo,
};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column as _, Row as _, Type, TypeInfo as _, ValueRef as _};

use super::verbs;
use crate::{Answer, Class, Connection, Engine, Error, Result, Row, Transaction, Value};

impl Transaction for sqlx::Transaction<'_, MySql> {
    verbs!(Engine::Mysql, |tx| &mut **tx);
}

impl Connection for MySqlConnection {
    verbs!(Engine::Mysql, |connection| connection);
}

async fn rows(db: &mut MySqlConnection, statement: &str, values: &[Value]) -> Result<Vec<Row>> {
    let rows = query(statement, values)?.fetch_all(db).await.map_err(failed)?;
    rows.iter().map(row_of).collect()
}

async fn execute(db: &mut MySqlConnection, statement: &str, values: &[Value]) -> Result<u64> {
    // Not every statement can be prepared; one without values need not be.
    let done = if values.is_empty() {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(db).await.map_err(failed)?
    } else {
        query(statement, values)?.execute(db).await.map_err(failed)?
    };
    Ok(done.rows_affected())
}

fn query<'a>(statement: &str, values: &'a [Value]) -> Result<Query<'a, MySql, MySqlArguments>> {
    let mut query = sqlx::query(AssertSqlSafe(statement));
    for value in values {
        query.try_bind(Bound(value)).map_err(unsent)?;
    }
    Ok(query)
}

fn unsent(error: BoxDynError) -> Error {
    Error::new(Class::Other, None, error)
}

struct Bound<'a>(&'a Value);

impl Type<MySql> for Bound<'_> {
    fn type_info() -> MySqlTypeInfo {
        <[u8] as Type<MySql>>::type_info()
    }
}

impl Encode<'_, MySql> for Bound<'_> {
    fn produces(&self) -> Option<MySqlTypeInfo> {
        Some(match self.0 {
            Value::Null | Value::Bytes(_) => <[u8] as Type<MySql>>::type_info(),
            Value::Int(_) => <i64 as Type<MySql>>::type_info(),
            Value::Text(_) => <str as Type<MySql>>::type_info(),
        })
    }

    fn encode_by_ref(&self, out: &mut Vec<u8>) -> Result<IsNull, BoxDynError> {
        match self.0 {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(number) => <i64 as Encode<'_, MySql>>::encode_by_ref(number, out),
            Value::Text(text) => <&str as Encode<'_, MySql>>::encode_by_ref(&&**text, out),
            Value::Bytes(bytes) => <&[u8] as Encode<'_, MySql>>::encode_by_ref(&&**bytes, out),
        }
    }
}

fn row_of(row: &MySqlRow) -> Result<Row> {
    let mut values = Vec::with_capacity(row.len());
    for (at, column) in row.columns().iter().enumerate() {
        if row.try_get_raw(at).map_err(failed)?.is_null() {
            values.push(Value::Null);
            continue;
        }
        let kind = column.type_info();
        // Not by the type's name: a text that compares byte by byte is named as bytes.
        let value = if <i64 as Type<MySql>>::compatible(kind) {
            row.try_get::<i64, _>(at).map(Value::from)
        } else if <u64 as Type<MySql>>::compatible(kind) {
            let number = row.try_get::<u64, _>(at).map_err(failed)?;
            Ok(Value::Int(i64::try_from(number).map_err(|_| Error::unread(at, kind.name()))?))
        } else if <str as Type<MySql>>::compatible(kind) {
            row.try_get::<String, _>(at).map(Value::from)
        } else if <[u8] as Type<MySql>>::compatible(kind) {
            row.try_get::<Vec<u8>, _>(at).map(Value::from)
        } else if kind.name() == "DECIMAL" {
            row.try_get_unchecked::<String, _>(at).map(Value::from)
        } else {
            return Err(Error::unread(at, kind.name()));
        };
        values.push(value.map_err(failed)?);
    }
    Ok(Row::new(values))
}

fn failed(error: sqlx::Error) -> Error {
    super::failed(error, |error| {
        let number = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number();
        Some((Class::of_mysql(number), number.to_string()))
    })
}
