//! What kind of server it is, whether its tables are as they should be, and making them.

use std::collections::HashMap;

use leasehold_core::{Error, ErrorKind, Result};

use crate::cells::Cells;
use crate::error::{BINLOG, Fail, corrupt_table, made};
use crate::lit::Sql;
use crate::session::{Session, Set};

/// The version of the tables that this program knows.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// The statements that make the tables.
pub(crate) const SCHEMA: &str = include_str!("schema.sql");

/// What is printed for people: also for where there are tables of an older version.
pub(crate) const PRINTED: &str = concat!(include_str!("schema.sql"), include_str!("older.sql"));

/// What is asked of each server that is reached.
pub(crate) const LOOK: &str = "SHOW VARIABLES WHERE Variable_name IN ('version', 'wsrep_on', \
    'read_only', 'super_read_only', 'innodb_read_only', 'log_bin', 'binlog_format', 'server_id', \
    'server_uid', 'server_uuid', 'hostname', 'port', 'innodb_flush_log_at_trx_commit', \
    'sync_binlog'); \
    SELECT SLEEP(0.001), SYSDATE(6) > NOW(6);";

/// What was found of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// Which server it is: another one is another history of claims.
    pub(crate) identity: String,
    /// `innodb_flush_log_at_trx_commit` and, where there is a binary log, `sync_binlog` are 1.
    pub(crate) durable: bool,
}

impl Server {
    /// Reads the answers to [`LOOK`].
    pub(crate) fn read(sets: Vec<Set>) -> Result<Server> {
        let mut sets = sets.into_iter().rev();
        let (sysdate, variables) =
            (sets.next().unwrap_or_default(), sets.next().unwrap_or_default());
        let mut found = HashMap::new();
        for row in variables.rows {
            let mut cells = Cells::new(row);
            found.insert(cells.text()?.to_ascii_lowercase(), cells.text()?);
        }
        let is = |name: &str, value: &str| {
            found.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
        };
        let get = |name: &str| found.get(name).map_or("", String::as_str);
        check_version(get("version"))?;
        if is("wsrep_on", "ON") {
            let detail = "the server is part of a Galera cluster, where several write at once";
            return Err(made(ErrorKind::Config, detail)
                .advise("name a server that is not, or another store"));
        }
        if ["read_only", "super_read_only", "innodb_read_only"].iter().any(|v| is(v, "ON")) {
            return Err(made(ErrorKind::Unavailable, "the server is read-only")
                .advise("name the primary in the store's URL"));
        }
        if is("log_bin", "ON") && is("binlog_format", "STATEMENT") {
            let detail = "the server's binlog_format is STATEMENT";
            return Err(made(ErrorKind::Config, detail).advise(BINLOG));
        }
        let mut cells = sysdate.rows.into_iter().next().map(Cells::new);
        if let Some(cells) = &mut cells {
            cells.num()?;
            if cells.num()? == 0 {
                let detail = "the server was started with sysdate-is-now";
                return Err(made(ErrorKind::Config, detail).advise(
                    "start it without: the time must be read after a lock was waited for",
                ));
            }
        }
        let synced = !is("log_bin", "ON") || is("sync_binlog", "1");
        let parts = ["server_uuid", "server_uid", "server_id", "hostname", "port"];
        Ok(Server {
            identity: parts.map(get).join("/"),
            durable: synced && is("innodb_flush_log_at_trx_commit", "1"),
        })
    }
}

/// `SKIP LOCKED` came with MySQL 8.0.1 and MariaDB 10.6.
fn check_version(version: &str) -> Result<()> {
    let maria = version.to_ascii_lowercase().contains("mariadb");
    let version_shown = leasehold_core::shown(version, 60);
    let text = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = text.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (least, name) = if maria { ((10, 6), "MariaDB 10.6") } else { ((8, 0), "MySQL 8.0") };
    if number >= least {
        return Ok(());
    }
    let detail = format!("the server has version {version_shown}: want {name} or newer");
    Err(made(ErrorKind::Config, detail))
}

/// Sees that the tables are there and as they should be; makes them where they are missing.
pub(crate) async fn check_schema(session: &mut Session, create: bool) -> Result<()> {
    let mut made_now = false;
    loop {
        let missing = match look_at_tables(session).await? {
            Tables::Good => return Ok(()),
            Tables::Missing(table) => table,
        };
        if !create || made_now {
            return Err(missing_tables(&missing, "asked not to make it"));
        }
        let mut sql = Sql::new();
        sql.text(SCHEMA);
        match session.run(&sql).await {
            Ok(_) => {}
            // Somebody makes them at the same time.
            Err(Fail::Again(_) | Fail::Duplicate) => {}
            Err(Fail::Error(error)) if error.kind() == ErrorKind::Permission => {
                return Err(missing_tables(&missing, &error.to_string()));
            }
            Err(fail) => return Err(fail.into_error()),
        }
        made_now = true;
    }
}

enum Tables {
    Good,
    Missing(String),
}

async fn look_at_tables(session: &mut Session) -> Result<Tables> {
    let mut sql = Sql::new();
    sql.text(
        "SELECT table_name, column_name, column_type, is_nullable \
         FROM information_schema.columns WHERE table_schema = DATABASE() \
         AND table_name IN ('leasehold_meta', 'leasehold_resource', 'leasehold_claim', \
         'leasehold_grave', 'leasehold_record'); \
         SELECT table_name, engine FROM information_schema.tables WHERE table_schema = DATABASE() \
         AND table_name IN ('leasehold_meta', 'leasehold_resource', 'leasehold_claim', \
         'leasehold_grave', 'leasehold_record');",
    );
    let sets = session.run(&sql).await.map_err(Fail::into_error)?;
    let mut sets = sets.into_iter();
    let mut found: HashMap<(String, String), String> = HashMap::new();
    for row in sets.next().unwrap_or_default().rows {
        let mut cells = Cells::new(row);
        let key = (cells.text()?, cells.text()?);
        let kind = plain_type(&cells.text()?);
        let null = if cells.text()? == "YES" { "NULL" } else { "NOT NULL" };
        found.insert(key, format!("{kind} {null}"));
    }
    let expected = expected_columns();
    for (table, _, _) in &expected {
        if !found.keys().any(|(there, _)| there == table) {
            return Ok(Tables::Missing((*table).to_owned()));
        }
    }
    for row in sets.next().unwrap_or_default().rows {
        let mut cells = Cells::new(row);
        let (table, engine) = (cells.text()?, cells.maybe_text()?.unwrap_or_default());
        if !engine.eq_ignore_ascii_case("innodb") {
            let detail = format!("the table {table} is of engine {engine}: want InnoDB");
            return Err(made(ErrorKind::Config, detail));
        }
    }
    check_version_row(session).await?;
    for (table, column, want) in expected {
        let key = (table.to_owned(), column.to_owned());
        match found.get(&key) {
            Some(there) if *there == want => {}
            Some(there) => {
                let detail = format!("the column {table}.{column} is {there}: want {want}");
                return Err(corrupt_table(&detail));
            }
            None => return Err(corrupt_table(&format!("the column {table}.{column} is missing"))),
        }
    }
    Ok(Tables::Good)
}

async fn check_version_row(session: &mut Session) -> Result<()> {
    let mut sql = Sql::new();
    sql.text("SELECT version FROM leasehold_meta WHERE one = 1;");
    let sets = session.run(&sql).await.map_err(Fail::into_error)?;
    let row = sets.into_iter().next().and_then(|set| set.rows.into_iter().next());
    let Some(row) = row else {
        return Err(corrupt_table("the row of leasehold_meta is missing"));
    };
    let version = Cells::new(row).small()?;
    let detail = format!("its tables have version {version}: this program knows {SCHEMA_VERSION}");
    match version.cmp(&SCHEMA_VERSION) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => {
            Err(made(ErrorKind::Version, detail).advise("use a leasehold as new as its tables"))
        }
        std::cmp::Ordering::Less => Err(made(ErrorKind::Version, detail).advise(
            "stop who uses them, run the SQL that `leasehold schema mysql` prints, which keeps \
                 what is in them, and start all with the new leasehold",
        )),
    }
}

/// `bigint(20) unsigned` of MariaDB is `bigint unsigned` of MySQL.
fn plain_type(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    match (text.find("int("), text.find(')')) {
        (Some(open), Some(close)) if close > open => {
            format!("{}{}", &text[..open + 3], &text[close + 1..])
        }
        _ => text,
    }
}

/// Table, column, type: as the schema says, which is thus written down once.
fn expected_columns() -> Vec<(&'static str, &'static str, String)> {
    let mut columns = Vec::new();
    let mut table = "";
    for line in SCHEMA.lines() {
        if let Some(rest) = line.strip_prefix("CREATE TABLE IF NOT EXISTS ") {
            table = rest.split(' ').next().unwrap_or_default();
        } else if let Some(rest) = line.strip_prefix("  ")
            && rest.starts_with(|c: char| c.is_ascii_lowercase())
        {
            let rest = rest.split("--").next().unwrap_or_default();
            let mut words = rest.trim().trim_end_matches(',').split_whitespace();
            let column = words.next().unwrap_or_default();
            let words: Vec<&str> = words.filter(|w| !matches!(*w, "PRIMARY" | "KEY")).collect();
            let split = words.len() - if words.contains(&"NOT") { 2 } else { 1 };
            let (kind, null) = words.split_at(split);
            let kind = kind.join(" ").to_ascii_lowercase();
            columns.push((table, column, format!("{kind} {}", null.join(" "))));
        }
    }
    columns
}

fn missing_tables(table: &str, why: &str) -> Error {
    made(ErrorKind::Permission, format!("its table {table} is missing, and is not made: {why}"))
        .advise("have the tables made: leasehold schema mysql | mysql DATABASE")
        .caused_by(MissingTables)
}

/// The tables have to be made by hand; shows the statements that make them.
#[derive(Debug, thiserror::Error)]
#[error("the tables are made by these statements:\n{SCHEMA}")]
struct MissingTables;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_read_as_it_is_written() {
        let columns = expected_columns();
        let find = |t, c| columns.iter().find(|(a, b, _)| (*a, *b) == (t, c)).unwrap().2.as_str();
        assert_eq!(find("leasehold_meta", "one"), "tinyint unsigned NOT NULL");
        assert_eq!(find("leasehold_resource", "name"), "varbinary(512) NOT NULL");
        assert_eq!(find("leasehold_resource", "h_until"), "bigint unsigned NULL");
        assert_eq!(find("leasehold_record", "value"), "mediumblob NOT NULL");
        assert_eq!(columns.len(), 3 + 22 + 23 + 4 + 4);
        assert_eq!(plain_type("BIGINT(20) unsigned"), "bigint unsigned");
        assert_eq!(plain_type("varbinary(512)"), "varbinary(512)");
    }

    #[test]
    fn old_servers_are_refused() {
        for good in [
            "10.11.19-MariaDB-0+deb12u1",
            "5.5.5-10.6.1-MariaDB",
            "11.4.2-MariaDB",
            "8.0.36",
            "9.1.0",
        ] {
            check_version(good).unwrap();
        }
        for bad in ["5.7.44-log", "10.5.9-MariaDB", "", "x"] {
            assert_eq!(check_version(bad).unwrap_err().kind(), ErrorKind::Config, "{bad}");
        }
    }
}
