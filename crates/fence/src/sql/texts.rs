//! The statements of each engine, and the order of their values.

use leasehold_core::{Access, Mark};
use leasehold_sql::{Engine, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::resource::Resource;

/// What is asked of one engine.
pub(super) struct Texts {
    pub(super) create_table: &'static str,
    /// Checks and raises in one step, where the engine can.
    pub(super) exclusive: &'static str,
    pub(super) shared: &'static str,
    pub(super) make: &'static str,
    pub(super) lock: &'static str,
    pub(super) read: &'static str,
    pub(super) present: Option<&'static str>,
}

const POSTGRES: Texts = Texts {
    create_table: include_str!("postgres/create_table.sql"),
    exclusive: include_str!("postgres/exclusive.sql"),
    shared: include_str!("postgres/shared.sql"),
    make: "",
    lock: include_str!("postgres/lock.sql"),
    read: include_str!("postgres/read.sql"),
    present: Some(include_str!("postgres/present.sql")),
};

const MYSQL: Texts = Texts {
    create_table: include_str!("mysql/create_table.sql"),
    exclusive: include_str!("mysql/exclusive.sql"),
    shared: include_str!("mysql/shared.sql"),
    make: include_str!("mysql/make.sql"),
    lock: include_str!("mysql/lock.sql"),
    read: include_str!("mysql/read.sql"),
    present: Some(include_str!("mysql/present.sql")),
};

const SQLITE: Texts = Texts {
    create_table: include_str!("../sqlite/create_table.sql"),
    exclusive: include_str!("sqlite/raise.sql"),
    shared: include_str!("sqlite/raise.sql"),
    make: include_str!("sqlite/lock.sql"),
    lock: include_str!("sqlite/read.sql"),
    read: include_str!("sqlite/read.sql"),
    present: None,
};

pub(super) fn texts(engine: Engine, doing: &str) -> Result<&'static Texts> {
    match engine {
        Engine::Postgres => Ok(&POSTGRES),
        Engine::Mysql => Ok(&MYSQL),
        Engine::Sqlite => Ok(&SQLITE),
        other => Err(unknown(other, doing)),
    }
}

pub(super) fn unknown(engine: Engine, doing: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{doing}: {engine:?} is not an engine it knows"))
}

/// The values that name the row: names are bytes on MySQL.
pub(super) fn key(engine: Engine, of: &Resource) -> [Value; 2] {
    let name = of.name().as_str();
    let name = match engine {
        Engine::Mysql => Value::Bytes(name.as_bytes().to_vec()),
        _ => name.into(),
    };
    [name, of.slot_number().map_or(-1, i64::from).into()]
}

pub(super) fn epoch(mark: Mark) -> i64 {
    i64::from(mark.epoch.0)
}

pub(super) fn token(mark: Mark) -> i64 {
    mark.token.get().cast_signed()
}

/// The values of the one step that checks and raises, on PostgreSQL and MySQL.
pub(super) fn raise(engine: Engine, of: &Resource, access: Access, mark: Mark) -> Vec<Value> {
    let [name, slot] = key(engine, of);
    let (e, t) = (Value::Int(epoch(mark)), Value::Int(token(mark)));
    let c = Value::clone;
    match (engine, access) {
        (Engine::Mysql, Access::Exclusive) => {
            vec![c(&e), c(&t), name, slot, c(&e), c(&t), e, t]
        }
        (Engine::Mysql, Access::Shared) => {
            vec![c(&e), c(&e), c(&t), c(&t), c(&e), name, slot, e, t]
        }
        _ => vec![name, slot, e, t],
    }
}
