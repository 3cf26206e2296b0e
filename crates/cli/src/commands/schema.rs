//! `schema`: the tables of a store, to be read, or to be made by whoever may.

use crate::args::{Schema, SchemaOf};
use crate::exit::End;
use crate::output;

pub(crate) fn schema(args: &Schema) -> Result<End, End> {
    output::data(&match args.of {
        SchemaOf::Postgres => leasehold::postgres::PostgresStore::schema_sql("public"),
        SchemaOf::Mysql => leasehold::mysql::MysqlStore::schema_sql().into(),
        SchemaOf::Sqlite => leasehold::sqlite::schema_sql().into(),
    })?;
    Ok(End::DONE)
}
