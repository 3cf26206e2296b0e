//! `schema`: the tables of a store, or the trigger that protects a table, to be read, or to be made by
//! whoever may.

use leasehold_fence::sql::{Engine, protection};

use crate::args::{Schema, SchemaOf};
use crate::exit::{Code, End};
use crate::output;

pub(crate) fn schema(args: &Schema) -> Result<End, End> {
    let sql = match &args.fence {
        None => tables(args.of),
        Some(table) => protection(engine(args.of), table)
            .map_err(|error| End::Fail(Code::Usage, format!("failed to {error}")))?,
    };
    output::data(&sql)?;
    Ok(End::DONE)
}

fn tables(of: SchemaOf) -> String {
    match of {
        SchemaOf::Postgres => leasehold::postgres::PostgresStore::schema_sql("public"),
        SchemaOf::Mysql => leasehold::mysql::MysqlStore::schema_sql().into(),
        SchemaOf::Sqlite => leasehold::sqlite::schema_sql().into(),
    }
}

fn engine(of: SchemaOf) -> Engine {
    match of {
        SchemaOf::Postgres => Engine::Postgres,
        SchemaOf::Mysql => Engine::Mysql,
        SchemaOf::Sqlite => Engine::Sqlite,
    }
}
