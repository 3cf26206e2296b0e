//! tokio-postgres 0.7: each statement in one round trip, without a named statement, so that a
//! pooler in transaction mode does not mind.

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::{Answer, Class, Connection, Engine, Error, Result, Row, Transaction, Value};

macro_rules! verbs {
    () => {
        fn engine(&self) -> Engine {
            Engine::Postgres
        }

        fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
            Box::pin(async move {
                let rows = self.query_typed(statement, &typed(values)).await.map_err(failed)?;
                rows.iter().map(row_of).collect()
            })
        }

        fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
            Box::pin(
                async move { self.execute_typed(statement, &typed(values)).await.map_err(failed) },
            )
        }
    };
}

impl Transaction for tokio_postgres::Transaction<'_> {
    verbs!();
}

impl Connection for tokio_postgres::Client {
    verbs!();
}

fn typed(values: &[Value]) -> Vec<(&(dyn ToSql + Sync), Type)> {
    values.iter().map(|value| (value as _, type_of(value))).collect()
}

/// NULL is of the type that the statement gives it.
fn type_of(value: &Value) -> Type {
    match value {
        Value::Null => Type::UNKNOWN,
        Value::Int(_) => Type::INT8,
        Value::Text(_) => Type::TEXT,
        Value::Bytes(_) => Type::BYTEA,
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Int(number) => number.to_sql(ty, out),
            Value::Text(text) => text.to_sql(ty, out),
            Value::Bytes(bytes) => bytes.to_sql(ty, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

fn row_of(row: &tokio_postgres::Row) -> Result<Row> {
    let mut values = Vec::with_capacity(row.len());
    for (at, column) in row.columns().iter().enumerate() {
        let value = match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(at).map(Value::from),
            Type::INT4 => row.try_get::<_, Option<i32>>(at).map(|n| n.map(i64::from).into()),
            Type::INT2 => row.try_get::<_, Option<i16>>(at).map(|n| n.map(i64::from).into()),
            Type::BOOL => row.try_get::<_, Option<bool>>(at).map(|is| is.map(i64::from).into()),
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at).map(Value::from),
            Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::UNKNOWN => {
                row.try_get::<_, Option<String>>(at).map(Value::from)
            }
            // What a function answers that answers nothing, as pg_advisory_xact_lock.
            Type::VOID => Ok(Value::Null),
            ref other => return Err(Error::unread(at, other)),
        };
        values.push(value.map_err(failed)?);
    }
    Ok(Row::new(values))
}

fn failed(error: tokio_postgres::Error) -> Error {
    if let Some(code) = error.code() {
        let code = code.code().to_owned();
        return Error::new(Class::of_postgres(&code), Some(code), error);
    }
    let cut = std::error::Error::source(&error).is_some_and(|e| e.is::<std::io::Error>());
    let class = if cut || error.is_closed() { Class::Connection } else { Class::Other };
    Error::new(class, None, error)
}
