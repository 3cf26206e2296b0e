//! mysql_async 0.37: a statement with values is prepared once a connection, and in one round trip
//! from then on; one without is sent as text, since not every statement can be prepared.

use mysql_async::consts::{ColumnFlags, ColumnType};
use mysql_async::prelude::Queryable;
use mysql_async::{DriverError, Params, Value as My};

use crate::{Answer, Class, Connection, Engine, Error, Result, Row, Transaction, Value};

macro_rules! verbs {
    () => {
        fn engine(&self) -> Engine {
            Engine::Mysql
        }

        fn rows<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, Vec<Row>> {
            Box::pin(async move {
                let rows: Vec<mysql_async::Row> =
                    self.exec(statement, params(values)).await.map_err(failed)?;
                rows.into_iter().map(row_of).collect()
            })
        }

        fn execute<'a>(&'a mut self, statement: &'a str, values: &'a [Value]) -> Answer<'a, u64> {
            Box::pin(async move {
                if values.is_empty() {
                    let answer = self.query_iter(statement).await.map_err(failed)?;
                    let rows = answer.affected_rows();
                    return answer.drop_result().await.map(|()| rows).map_err(failed);
                }
                let answer = self.exec_iter(statement, params(values)).await.map_err(failed)?;
                let rows = answer.affected_rows();
                answer.drop_result().await.map(|()| rows).map_err(failed)
            })
        }
    };
}

impl Transaction for mysql_async::Transaction<'_> {
    verbs!();
}

impl Connection for mysql_async::Conn {
    verbs!();
}

fn params(values: &[Value]) -> Params {
    if values.is_empty() {
        return Params::Empty;
    }
    let one = |value: &Value| match value {
        Value::Null => My::NULL,
        Value::Int(number) => My::Int(*number),
        Value::Text(text) => My::Bytes(text.clone().into_bytes()),
        Value::Bytes(bytes) => My::Bytes(bytes.clone()),
    };
    Params::Positional(values.iter().map(one).collect())
}

/// The character set of what is not text.
const BINARY: u16 = 63;

fn row_of(row: mysql_async::Row) -> Result<Row> {
    let columns = row.columns();
    let mut values = Vec::with_capacity(columns.len());
    for (at, (value, column)) in row.unwrap().into_iter().zip(columns.iter()).enumerate() {
        let kind = column.column_type();
        let unread = || Error::unread(at, format!("{kind:?}"));
        values.push(match value {
            My::NULL => Value::Null,
            My::Int(number) => Value::Int(number),
            My::UInt(number) => Value::Int(i64::try_from(number).map_err(|_| unread())?),
            My::Bytes(bytes) if is_bytes(kind, column.character_set(), column.flags()) => {
                Value::Bytes(bytes)
            }
            My::Bytes(bytes) => Value::Text(String::from_utf8(bytes).map_err(|_| unread())?),
            _ => return Err(unread()),
        });
    }
    Ok(Row::new(values))
}

/// Decimals are of the character set of bytes too, and are text.
fn is_bytes(kind: ColumnType, character_set: u16, flags: ColumnFlags) -> bool {
    let decimal =
        matches!(kind, ColumnType::MYSQL_TYPE_DECIMAL | ColumnType::MYSQL_TYPE_NEWDECIMAL);
    character_set == BINARY && !decimal && !flags.contains(ColumnFlags::NUM_FLAG)
}

fn failed(error: mysql_async::Error) -> Error {
    let (class, code) = match &error {
        mysql_async::Error::Server(server) => {
            (Class::of_mysql(server.code), Some(server.code.to_string()))
        }
        mysql_async::Error::Io(_)
        | mysql_async::Error::Driver(
            DriverError::ConnectionClosed | DriverError::PoolDisconnected,
        ) => (Class::Connection, None),
        _ => (Class::Other, None),
    };
    Error::new(class, code, error)
}
