//! The tables and functions in the database: made on demand, printed, and looked over.

use leasehold_core::{Error, ErrorKind, Result};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::error::{DOING, Failed, failed, not_connected};

/// The version of the tables and functions that this crate makes and uses.
pub(crate) const VERSION: i32 = 1;
/// The oldest server: `plan_cache_mode` came with it, procedures that commit a version before.
const SERVER_MIN: i32 = 120_000;

const TABLES: &str = include_str!("sql/tables.sql");
const PARTS: [&str; 9] = [
    TABLES,
    include_str!("sql/desk.sql"),
    include_str!("sql/settle.sql"),
    include_str!("sql/answer.sql"),
    include_str!("sql/enter.sql"),
    include_str!("sql/leave.sql"),
    include_str!("sql/renew.sql"),
    include_str!("sql/more.sql"),
    include_str!("sql/serve.sql"),
];

/// All of it, for this schema, in one transaction.
pub(crate) fn script(schema: &str) -> String {
    let quoted = quote(schema);
    let mut sql = String::new();
    if schema != "public" {
        sql.push_str(&format!("CREATE SCHEMA IF NOT EXISTS {quoted};\n\n"));
    }
    sql.push_str(&body(schema));
    sql
}

fn body(schema: &str) -> String {
    PARTS.join("\n").replace("public.", &format!("{}.", quote(schema)))
}

/// What is printed for people: the script, and what the application's role needs.
pub(crate) fn printed(schema: &str) -> String {
    let quoted = quote(schema);
    format!(
        "-- leasehold, version {VERSION} of its tables, new or from an older version. Run as the owner of \
         the schema.\n\n\
         BEGIN;\n\n{}\nCOMMIT;\n\n\
         -- The role of the application, where it is another, needs:\n\
         --   GRANT USAGE ON SCHEMA {quoted} TO app;\n\
         --   GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted}.leasehold_resource,\n\
         --     {quoted}.leasehold_claim, {quoted}.leasehold_grave, {quoted}.leasehold_record TO app;\n\
         --   GRANT SELECT, UPDATE ON {quoted}.leasehold_meta TO app;\n",
        script(schema)
    )
}

/// An identifier, quoted where it has to be.
pub(crate) fn quote(name: &str) -> String {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && name.starts_with(|c: char| c.is_ascii_lowercase());
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// What a server said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// Rises with each promotion of a standby; 0 where it is not told.
    pub(crate) timeline: u32,
    /// Whether it may be written to.
    pub(crate) writable: bool,
    /// Whether it is a standby.
    pub(crate) standby: bool,
    /// The port from which it sees this connection come; nothing by a Unix socket.
    pub(crate) seen_port: Option<i32>,
    state: State,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Missing,
    Present { columns: Vec<String>, serves: bool },
}

/// Asks a server what it is and whether its tables are there.
pub(crate) async fn look(client: &Client, schema: &str) -> Result<Server> {
    let sql = include_str!("sql/look.sql");
    let procedure = format!("{}.leasehold_serve(text,boolean,boolean,text)", quote(schema));
    let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&schema, Type::TEXT), (&procedure, Type::TEXT)];
    let row = client.query_typed_one(sql, &params).await.map_err(refused)?;
    let get = |e: tokio_postgres::Error| Error::new(ErrorKind::Corrupt, DOING, e.to_string());
    let version: i32 = row.try_get(0).map_err(get)?;
    if version < SERVER_MIN {
        let detail = format!("the server is PostgreSQL {}: want 12 or later", version / 10_000);
        return Err(Error::new(ErrorKind::Version, DOING, detail));
    }
    let standby: bool = row.try_get(1).map_err(get)?;
    let read_only: bool = row.try_get(2).map_err(get)?;
    let timeline: Option<String> = row.try_get(3).map_err(get)?;
    let timeline = timeline.and_then(|hex| u32::from_str_radix(&hex, 16).ok()).unwrap_or(0);
    let seen_port: Option<i32> = row.try_get(4).map_err(get)?;
    let columns: Option<Vec<String>> = row.try_get(5).map_err(get)?;
    let serves: bool = row.try_get(6).map_err(get)?;
    let columns = columns.unwrap_or_default();
    let has_meta = columns.iter().any(|c| c.starts_with("leasehold_meta."));
    let state = if has_meta { State::Present { columns, serves } } else { State::Missing };
    Ok(Server { timeline, writable: !standby && !read_only, standby, seen_port, state })
}

/// Sees that the tables are those of this version, and makes them where there are none.
pub(crate) async fn ensure(client: &Client, schema: &str, server: &Server) -> Result<()> {
    if server.state == State::Missing {
        make(client, schema).await?;
        let server = look(client, schema).await?;
        return check(client, schema, &server).await;
    }
    check(client, schema, server).await
}

async fn check(client: &Client, schema: &str, server: &Server) -> Result<()> {
    let State::Present { columns, serves } = &server.state else {
        return Err(Error::new(ErrorKind::Replaced, DOING, "its tables went as they came"));
    };
    let sql = format!("SELECT version FROM {}.leasehold_meta", quote(schema));
    let row = client.query_typed_opt(&sql, &[]).await.map_err(refused)?;
    let version: Option<i32> = row.and_then(|row| row.try_get(0).ok());
    match version {
        Some(VERSION) => {}
        Some(newer) if newer > VERSION => {
            let detail =
                format!("its tables are of version {newer}, and this leasehold knows {VERSION}");
            return Err(Error::new(ErrorKind::Version, DOING, detail)
                .advise("use a leasehold as new as the one that made them"));
        }
        Some(older) => {
            let detail =
                format!("its tables are of version {older}, and this leasehold wants {VERSION}");
            return Err(Error::new(ErrorKind::Version, DOING, detail).advise(
                "stop who uses them, run the SQL that `leasehold schema postgres` prints, which \
                 keeps what is in them, and start all with the new leasehold",
            ));
        }
        None => {
            let detail = "its tables are not as leasehold made them: leasehold_meta has no row";
            return Err(Error::new(ErrorKind::Corrupt, DOING, detail));
        }
    }
    for wanted in wanted_columns() {
        if !columns.contains(&wanted) {
            let detail = format!("its tables are not as leasehold made them: no column {wanted}");
            return Err(Error::new(ErrorKind::Corrupt, DOING, detail)
                .advise("compare them with what `leasehold schema postgres` prints"));
        }
    }
    if !serves {
        let detail = "its tables are there, but not the functions beside them";
        return Err(Error::new(ErrorKind::Corrupt, DOING, detail)
            .advise("restore the whole schema, functions included"));
    }
    Ok(())
}

/// Makes the tables, whoever else does so at the same time.
async fn make(client: &Client, schema: &str) -> Result<()> {
    // One at a time, by a lock that ends with the transaction; then looked at again.
    let begin = "BEGIN; SELECT pg_advisory_xact_lock(7813586407250912000);";
    client.batch_execute(begin).await.map_err(refused)?;
    let made = async {
        if look(client, schema).await?.state == State::Missing {
            let exists = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
            let there = client.query_typed_opt(exists, &[(&schema, Type::TEXT)]).await;
            let sql = if there.map_err(refused)?.is_some() { body(schema) } else { script(schema) };
            client.batch_execute(&sql).await.map_err(|e| unmade(refused(e)))?;
        }
        Ok(())
    };
    let made = made.await;
    let end = if made.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = client.batch_execute(end).await;
    made?;
    ended.map_err(refused)
}

fn unmade(error: Error) -> Error {
    if error.kind() != ErrorKind::Permission {
        return error;
    }
    let detail = "its tables are missing, and this role may not make them";
    Error::new(ErrorKind::Permission, DOING, detail)
        .advise(
            "let the owner of the schema run the SQL that `leasehold schema postgres` prints \
             (PostgresStore::schema_sql)",
        )
        .caused_by(error)
}

fn refused(error: tokio_postgres::Error) -> Error {
    if error.as_db_error().is_none() {
        return not_connected(error);
    }
    match failed(error) {
        Failed::Connection(error) | Failed::Statement(error) => error,
    }
}

/// `table.column type` of all that [`TABLES`] makes.
fn wanted_columns() -> Vec<String> {
    let mut table = "";
    let mut columns = Vec::new();
    for line in TABLES.lines() {
        if let Some(rest) = line.strip_prefix("CREATE TABLE IF NOT EXISTS public.") {
            table = rest.split_whitespace().next().unwrap_or_default();
        } else if line.starts_with(')') {
            table = "";
        }
        let mut words = line.split_whitespace();
        let (Some(column), Some(kind)) = (words.next(), words.next()) else { continue };
        let is_column = !table.is_empty()
            && line.starts_with("  ")
            && column.starts_with(|c: char| c.is_ascii_lowercase());
        if is_column {
            let kind =
                kind.trim_end_matches(',').replace("timestamptz", "timestamp with time zone");
            columns.push(format!("{table}.{column} {kind}"));
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_read_from_the_tables() {
        let columns = wanted_columns();
        for wanted in [
            "leasehold_meta.version integer",
            "leasehold_resource.name text",
            "leasehold_resource.h_broken boolean",
            "leasehold_claim.slots integer[]",
            "leasehold_record.until timestamp with time zone",
        ] {
            assert!(columns.iter().any(|c| c == wanted), "{wanted} of {columns:?}");
        }
        assert_eq!(columns.len(), 3 + 21 + 24 + 3 + 4);
    }

    #[test]
    fn a_schema_is_quoted_where_it_has_to_be() {
        assert_eq!(quote("locks_2"), "locks_2");
        assert_eq!(quote("a\"b"), "\"a\"\"b\"");
        let sql = printed("My Locks");
        assert!(sql.contains("CREATE SCHEMA IF NOT EXISTS \"My Locks\";"));
        assert!(sql.contains("CREATE TABLE IF NOT EXISTS \"My Locks\".leasehold_claim"));
        assert!(!sql.contains("public."));
    }
}
