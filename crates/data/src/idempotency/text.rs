//! The statements of each engine, for a table of any name.

use leasehold_sql::Engine;

use crate::name::Name;
use crate::{Result, Table};

/// The name that the files have.
const TABLE: &str = "leasehold_idempotency";
const INDEX: &str = "leasehold_idempotency_expires";

/// The statements of one engine. Where an engine has no use for one, another stands in its place: PostgreSQL alone
/// waits for a key's lock, MySQL alone has to ask for the newest of a row, and cleans in two steps.
#[derive(Clone, Debug)]
pub(super) struct Texts {
    pub(super) tables: Vec<String>,
    pub(super) meet: String,
    pub(super) meet_newest: String,
    pub(super) wait: String,
    pub(super) done: String,
    pub(super) make: String,
    pub(super) look: String,
    pub(super) look_locked: String,
    pub(super) take_over: String,
    pub(super) begin_anew: String,
    pub(super) finish: String,
    pub(super) renew: String,
    pub(super) point: String,
    pub(super) give_up: String,
    pub(super) forget: String,
    pub(super) expired: String,
    pub(super) clean: String,
}

macro_rules! texts {
    ($with:expr, $engine:literal, [$($table:literal),*], $newest:literal, $wait:literal,
        $locked:literal, $expired:literal, $clean:literal) => {
        Texts {
            tables: vec![$($with(include_str!(concat!("sql/", $engine, "/", $table)))),*],
            meet: $with(include_str!(concat!("sql/", $engine, "/meet.sql"))),
            meet_newest: $with(include_str!(concat!("sql/", $engine, "/", $newest))),
            wait: $with(include_str!(concat!("sql/", $engine, "/", $wait))),
            done: $with(include_str!(concat!("sql/", $engine, "/done.sql"))),
            make: $with(include_str!(concat!("sql/", $engine, "/make.sql"))),
            look: $with(include_str!(concat!("sql/", $engine, "/look.sql"))),
            look_locked: $with(include_str!(concat!("sql/", $engine, "/", $locked))),
            take_over: $with(include_str!(concat!("sql/", $engine, "/take_over.sql"))),
            begin_anew: $with(include_str!(concat!("sql/", $engine, "/begin_anew.sql"))),
            finish: $with(include_str!(concat!("sql/", $engine, "/finish.sql"))),
            renew: $with(include_str!(concat!("sql/", $engine, "/renew.sql"))),
            point: $with(include_str!(concat!("sql/", $engine, "/point.sql"))),
            give_up: $with(include_str!(concat!("sql/", $engine, "/give_up.sql"))),
            forget: $with(include_str!(concat!("sql/", $engine, "/forget.sql"))),
            expired: $with(include_str!(concat!("sql/", $engine, "/", $expired))),
            clean: $with(include_str!(concat!("sql/", $engine, "/", $clean))),
        }
    };
}

/// A table of another name, and its index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Names {
    table: Table,
    index: Name,
}

impl Names {
    pub(super) fn new(table: Table) -> Result<Names> {
        let index = table.sibling("_expires")?;
        Ok(Names { table, index })
    }

    /// The index's name begins with the table's.
    fn put_into(&self, text: &str, engine: Engine) -> String {
        let table = self.table.quoted(engine);
        let parts = text.split(INDEX).map(|part| part.replace(TABLE, &table));
        parts.collect::<Vec<_>>().join(&self.index.quoted(engine))
    }
}

impl Texts {
    pub(super) fn new(engine: Engine, names: Option<&Names>) -> Texts {
        let with = |text: &str| renamed(&plain(text), names, engine);
        match engine {
            Engine::Postgres => texts!(
                with,
                "postgres",
                ["before_table.sql", "table.sql", "index.sql"],
                "meet.sql",
                "wait.sql",
                "look.sql",
                "clean.sql",
                "clean.sql"
            ),
            Engine::Mysql => {
                texts!(
                    with,
                    "mysql",
                    ["table.sql"],
                    "meet_newest.sql",
                    "meet.sql",
                    "look_locked.sql",
                    "expired.sql",
                    "remove.sql"
                )
            }
            _ => texts!(
                with,
                "sqlite",
                ["table.sql", "index.sql"],
                "meet.sql",
                "meet.sql",
                "look.sql",
                "clean.sql",
                "clean.sql"
            ),
        }
    }
}

/// Without the comment that the file begins with.
fn plain(text: &str) -> String {
    let lines = text.lines().skip_while(|line| line.starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

fn renamed(text: &str, names: Option<&Names>, engine: Engine) -> String {
    names.map_or_else(|| text.to_owned(), |names| names.put_into(text, engine))
}

/// The table's text as a person reads it, comments and all.
pub(super) fn printed(engine: Engine, names: Option<&Names>) -> String {
    let files: &[&str] = match engine {
        Engine::Postgres => {
            &[include_str!("sql/postgres/table.sql"), include_str!("sql/postgres/index.sql")]
        }
        Engine::Mysql => &[include_str!("sql/mysql/table.sql")],
        _ => &[include_str!("sql/sqlite/table.sql"), include_str!("sql/sqlite/index.sql")],
    };
    let texts = files.iter().map(|file| renamed(file.trim_end(), names, engine) + ";\n");
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_another_name_is_quoted_in_every_statement() {
        let table = Table::in_schema("shop", "seen keys").unwrap();
        let names = Names::new(table.clone()).unwrap();
        for engine in [Engine::Postgres, Engine::Mysql, Engine::Sqlite] {
            let texts = Texts::new(engine, Some(&names));
            let all = format!("{texts:?}").replace("\\\"", "\"");
            let lock = "hashtext('\"shop\".\"seen keys\"')";
            assert!(!all.replace(lock, "").contains(TABLE), "{all}");
            let printed = printed(engine, Some(&names));
            assert!(printed.contains(&table.quoted(engine)), "{printed}");
            assert!(printed.contains(&Table::new("seen keys_expires").unwrap().quoted(engine)));
        }
    }

    #[test]
    fn statements_carry_no_comments_and_the_printed_text_does() {
        for engine in [Engine::Postgres, Engine::Mysql, Engine::Sqlite] {
            let texts = Texts::new(engine, None);
            for text in [&texts.make, &texts.look, &texts.finish, &texts.clean] {
                assert!(!text.contains("--"), "{text}");
            }
            assert!(printed(engine, None).starts_with("-- Idempotency keys"));
        }
    }
}
