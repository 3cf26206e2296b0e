//! The trigger that refuses the late in writers nobody can edit.

use leasehold_sql::Engine;

use super::failed::name;
use super::names;
use super::texts::{texts, unknown};
use crate::error::{Error, ErrorKind, Result};

/// MySQL's names of triggers have 64 characters, of which ours take some.
const LONGEST_ON_MYSQL: usize = 48;

/// The SQL that protects a table by a trigger, for that engine's own shell.
///
/// The trigger refuses every write to it by whoever shows no mark, or one that a newer holder has
/// passed, and raises the mark of the resource that is called as the table is. A writer in this
/// library shows its mark by [`present`](super::present); how another does is told in the SQL.
/// `leasehold schema postgres --fence TABLE` prints it.
///
/// # Errors
///
/// [`ErrorKind::Usage`] for what is no name of a table: `table` or, on PostgreSQL,
/// `schema.table`, of letters, digits, `_` and `$`, spelled as the database keeps it.
/// [`ErrorKind::Unsupported`] for SQLite, which gives a trigger nothing that ends with the
/// transaction: a mark could outlive its writer unseen. There, all writers [`enter`](super::enter).
pub fn protection(engine: Engine, table: &str) -> Result<String> {
    let doing = format!("protect a table by a trigger in {}", name(engine));
    let quoted = names::table(engine, table)?;
    let template = match engine {
        Engine::Postgres => include_str!("postgres/protection.sql"),
        Engine::Mysql => include_str!("mysql/protection.sql"),
        Engine::Sqlite => {
            let text = format!(
                "{doing}: its triggers see nothing that ends with a transaction, so a mark could \
                 outlive its writer; have every writer enter instead"
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        other => return Err(unknown(other, &doing)),
    };
    if engine == Engine::Mysql {
        if table.contains('.') {
            let text = format!("{doing}: name the table alone, and run the SQL in its database");
            return Err(Error::new(ErrorKind::Usage, text));
        }
        if table.chars().count() > LONGEST_ON_MYSQL {
            let text = format!("{doing}: the table's name is longer than {LONGEST_ON_MYSQL}");
            return Err(Error::new(ErrorKind::Usage, text));
        }
    }
    let mut sql = template.replace("{create_table}", texts(engine, &doing)?.create_table);
    for on in ["insert", "update", "delete"] {
        sql = sql.replace(&format!("{{{on}}}"), &format!("`leasehold_{on}_{table}`"));
    }
    // Last, and checked: nothing in them can end a quote.
    Ok(sql.replace("{table}", &quoted).replace("{resource}", table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_refused_and_nothing_is_left_open() {
        for engine in [Engine::Postgres, Engine::Mysql] {
            let sql = protection(engine, "orders").unwrap();
            assert!(!sql.contains("{create") && !sql.contains("{table}") && !sql.contains("{res"));
            for bad in ["x'; DROP TABLE y --", "a`b", "a\"b", "", "a b"] {
                let error = protection(engine, bad).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Usage, "{bad}");
            }
        }
        assert!(protection(Engine::Postgres, "shop.orders").is_ok());
        assert_eq!(protection(Engine::Mysql, "shop.orders").unwrap_err().kind(), ErrorKind::Usage);
        let error = protection(Engine::Sqlite, "orders").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
