//! Transactions of tokio-postgres 0.7: each statement in one round trip, without a named
//! statement, so that a pooler in transaction mode does not mind.

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::{Answer, Class, Engine, Error, Result, Row, Transaction, Value};

impl Transaction for tokio_postgres::Transaction<'_> {
    fn engine(&self) -> Engine {
        Engine::Postgres
    }

    fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
        Box::pin(async move {
            let typed: Vec<_> = values.iter().map(|value| (value as _, type_of(value))).collect();
            let rows = self.query_typed(statement, &typed).await.map_err(failed)?;
            rows.iter().map(row_of).collect()
        })
    }

    fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
        Box::pin(async move {
            let typed: Vec<_> = values.iter().map(|value| (value as _, type_of(value))).collect();
            self.execute_typed(statement, &typed).await.map_err(failed)
        })
    }
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
    let columns = row.columns().iter().enumerate();
    let values: Result<Vec<Value>, _> = columns
        .map(|(at, column)| match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(at).map(Value::from),
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at).map(Value::from),
            _ => row.try_get::<_, Option<String>>(at).map(Value::from),
        })
        .collect();
    values.map(Row::new).map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> Error {
    let Some(code) = error.code() else {
        let class = if error.is_closed() { Class::Connection } else { Class::Other };
        return Error::new(class, None, error);
    };
    let class = match code.code() {
        "40001" => Class::Restart,
        "40P01" => Class::Deadlock,
        "55P03" => Class::Busy,
        "25P02" => Class::Aborted,
        "23505" => Class::Duplicate,
        "23514" | "22003" => Class::Refused,
        "42P01" => Class::NoTable,
        "42703" => Class::NoColumn,
        "42501" => Class::Permission,
        "25006" => Class::ReadOnly,
        "57P01" | "57P02" | "57P03" => Class::Connection,
        other if other.starts_with("08") => Class::Connection,
        _ => Class::Other,
    };
    Error::new(class, Some(code.code().to_owned()), error)
}
