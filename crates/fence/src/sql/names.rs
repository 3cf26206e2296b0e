//! Names of tables and columns, checked and quoted.

use leasehold_sql::Engine;

use crate::error::{Error, ErrorKind, Result};

/// PostgreSQL's limit, the lowest of the three.
const LONGEST: usize = 63;

/// A table, or `schema.table`, quoted for this engine.
pub(super) fn table(engine: Engine, name: &str) -> Result<String> {
    let parts: Vec<&str> = name.split('.').collect();
    if parts.len() > 2 {
        return Err(refused(name, "it has more than a schema before its dot"));
    }
    let quoted: Result<Vec<String>> = parts.into_iter().map(|part| column(engine, part)).collect();
    Ok(quoted?.join("."))
}

/// A column, quoted for this engine.
pub(super) fn column(engine: Engine, name: &str) -> Result<String> {
    let first = name.chars().next().ok_or_else(|| refused(name, "it is empty"))?;
    if name.len() > LONGEST {
        return Err(refused(name, "it is longer than 63 bytes"));
    }
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    if first.is_numeric() || first == '$' || !name.chars().all(plain) {
        return Err(refused(
            name,
            "it is not made of letters, digits, `_` and `$`, with a letter or `_` first",
        ));
    }
    let quote = if engine == Engine::Mysql { '`' } else { '"' };
    Ok(format!("{quote}{name}{quote}"))
}

fn refused(name: &str, why: &str) -> Error {
    let shown: String = name.chars().take(64).collect();
    Error::new(ErrorKind::Usage, format!("name a table or a column {shown:?}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_whatever_could_end_a_quote_is_refused() {
        assert_eq!(table(Engine::Postgres, "shop.Order").unwrap(), r#""shop"."Order""#);
        assert_eq!(table(Engine::Mysql, "straße_1").unwrap(), "`straße_1`");
        let long = "x".repeat(64);
        let bad = [
            "", ".", "a.", "a.b.c", "a b", "a\"b", "a`b", "a;b", "a'b", "a--b", "1a", "$a", "a\0",
            "a\\b", "a/*", &long,
        ];
        for name in bad {
            let error = table(Engine::Postgres, name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{name}");
        }
        assert!(column(Engine::Sqlite, "a.b").is_err());
    }
}
