//! `schema`: the tables of a store, to be read, or to be made by whoever may.

use crate::args::{Schema, SchemaOf};
use crate::exit::End;
use crate::output;

pub(crate) fn schema(args: &Schema) -> Result<End, End> {
    output::data(match args.of {
        SchemaOf::Sqlite => leasehold::sqlite::schema_sql(),
    })?;
    Ok(End::DONE)
}
