//! Names of tables and columns, quoted so that they are nothing but names; and statements made with them.

use leasehold_sql::{Engine, Value};

use crate::{Error, Result};

/// PostgreSQL cuts a longer name off, in silence.
const LONGEST: usize = 63;

/// The name of a table, a column or a schema, exactly as it is: also its case counts on PostgreSQL.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Name(String);

impl Name {
    pub(crate) fn new(name: impl Into<String>) -> Result<Name> {
        let name = name.into();
        let why = match name.len() {
            0 => "it is empty",
            length if length > LONGEST => "it has more than 63 bytes",
            _ if name.contains('\0') => "it has a NUL character",
            _ => return Ok(Name(name)),
        };
        Err(Error::Name { name, why })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// SQLite takes a name in double quotes for a text if there is no such column; never one in backticks.
    pub(crate) fn quoted(&self, engine: Engine) -> String {
        match engine {
            Engine::Postgres => format!("\"{}\"", self.0.replace('"', "\"\"")),
            _ => format!("`{}`", self.0.replace('`', "``")),
        }
    }
}

/// A table, perhaps in a schema of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Table {
    schema: Option<Name>,
    name: Name,
}

impl Table {
    /// A table that the connection finds by its name alone.
    ///
    /// The name is quoted: it is nothing but a name, whatever is in it, and its case counts on PostgreSQL.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if it is empty, longer than 63 bytes, or has a NUL character.
    pub fn new(name: impl Into<String>) -> Result<Table> {
        Ok(Table { schema: None, name: Name::new(name)? })
    }

    /// A table in this schema: on MySQL a database, on SQLite an attached one.
    ///
    /// # Errors
    ///
    /// As [`Table::new`].
    pub fn in_schema(schema: impl Into<String>, name: impl Into<String>) -> Result<Table> {
        Ok(Table { schema: Some(Name::new(schema)?), name: Name::new(name)? })
    }

    pub(crate) fn quoted(&self, engine: Engine) -> String {
        let name = self.name.quoted(engine);
        match &self.schema {
            Some(schema) => format!("{}.{name}", schema.quoted(engine)),
            None => name,
        }
    }

    pub(crate) fn schema(&self) -> Option<&str> {
        self.schema.as_ref().map(Name::as_str)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    /// A name that begins as the table's does.
    pub(crate) fn sibling(&self, suffix: &str) -> Result<Name> {
        Name::new(format!("{}{suffix}", self.name.0))
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{}.{}", schema.0, self.name.0),
            None => f.write_str(&self.name.0),
        }
    }
}

/// What goes into a column: a value, and where the column is neither an integer, a text nor bytes, its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    pub(crate) value: Value,
    pub(crate) cast: Option<String>,
}

impl Param {
    /// A value that the database casts to this type: `Param::cast("uuid", "5f0c…")`.
    ///
    /// # Errors
    ///
    /// [`Error::Name`] if that cannot be a type: letters, digits, `_`, blanks, and a bracketed length are.
    pub fn cast(to: &str, value: impl Into<Value>) -> Result<Param> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ' ' | '(' | ')' | ',');
        let starts = to.starts_with(|c: char| c.is_ascii_alphabetic());
        if to.len() > LONGEST || !starts || !to.chars().all(plain) {
            let why = "a type is of letters, digits, `_`, blanks and a bracketed length";
            return Err(Error::Name { name: to.to_owned(), why });
        }
        Ok(Param { value: value.into(), cast: Some(to.to_owned()) })
    }
}

impl<V: Into<Value>> From<V> for Param {
    fn from(value: V) -> Param {
        Param { value: value.into(), cast: None }
    }
}

/// A statement in the making: text and values grow together.
#[derive(Debug)]
pub(crate) struct Statement {
    engine: Engine,
    pub(crate) text: String,
    pub(crate) values: Vec<Value>,
}

impl Statement {
    pub(crate) fn new(engine: Engine) -> Statement {
        Statement { engine, text: String::new(), values: Vec::new() }
    }

    pub(crate) fn sql(&mut self, text: &str) -> &mut Statement {
        self.text.push_str(text);
        self
    }

    pub(crate) fn table(&mut self, table: &Table) -> &mut Statement {
        self.text.push_str(&table.quoted(self.engine));
        self
    }

    pub(crate) fn name(&mut self, name: &Name) -> &mut Statement {
        self.text.push_str(&name.quoted(self.engine));
        self
    }

    pub(crate) fn param(&mut self, param: &Param) -> &mut Statement {
        match &param.cast {
            Some(to) => {
                self.text.push_str("CAST(");
                self.value(param.value.clone());
                self.text.push_str(" AS ");
                self.text.push_str(to);
                self.text.push(')');
            }
            None => {
                self.value(param.value.clone());
            }
        }
        self
    }

    pub(crate) fn value(&mut self, value: impl Into<Value>) -> &mut Statement {
        self.values.push(value.into());
        let number = self.values.len();
        match self.engine {
            Engine::Postgres => self.text.push_str(&format!("${number}")),
            Engine::Sqlite => self.text.push_str(&format!("?{number}")),
            _ => self.text.push('?'),
        }
        self
    }

    /// One after the other, with commas between.
    pub(crate) fn each<I>(
        &mut self,
        items: impl IntoIterator<Item = I>,
        put: impl Fn(&mut Statement, I) -> &mut Statement,
    ) -> &mut Statement {
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.text.push_str(", ");
            }
            put(self, item);
        }
        self
    }

    /// Whether a column holds just this, NULL included: 1 or 0. A text is compared byte by byte, on MySQL too,
    /// where collations take some texts for the same.
    pub(crate) fn same(&mut self, column: &Name, param: &Param) -> &mut Statement {
        let bytes = param.cast.is_none() && matches!(param.value, Value::Text(_));
        match self.engine {
            Engine::Mysql if bytes => {
                self.sql("CAST(CAST(CONVERT(").name(column).sql(" USING utf8mb4) AS BINARY) <=> ");
                self.sql("CAST(CONVERT(").param(param).sql(" USING utf8mb4) AS BINARY) AS SIGNED)")
            }
            Engine::Mysql => {
                self.sql("CAST(").name(column).sql(" <=> ").param(param).sql(" AS SIGNED)")
            }
            Engine::Sqlite => {
                self.sql("CAST(").name(column).sql(" IS ").param(param).sql(" AS bigint)")
            }
            _ => {
                self.sql("CASE WHEN ").name(column).sql(" IS NOT DISTINCT FROM ").param(param);
                self.sql(" THEN 1::bigint ELSE 0::bigint END")
            }
        }
    }

    /// `column AS an integer of 64 bits`, whatever its size: what an answer may hold.
    pub(crate) fn integer(&mut self, name: &Name) -> &mut Statement {
        let to = if self.engine == Engine::Mysql { "SIGNED" } else { "bigint" };
        self.sql("CAST(").name(name).sql(" AS ").sql(to).sql(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_name_is_refused() {
        for name in ["", "a\0b", &"x".repeat(64)] {
            assert!(matches!(Table::new(name), Err(Error::Name { .. })), "{name:?}");
        }
        assert!(Table::new("x".repeat(63)).is_ok());
        for cast in ["", "int; DROP TABLE x", "a'b", "(1)"] {
            assert!(Param::cast(cast, 1).is_err(), "{cast:?}");
        }
        assert!(Param::cast("numeric(10, 2)", "1.50").is_ok());
    }

    proptest::proptest! {
        /// Read as the engine reads it: from the first quote on, a doubled quote is one, a single one ends the name.
        #[test]
        fn a_quoted_name_is_one_name_and_the_same(name in "[a`\"'; \\\\.ä]{1,12}") {
            for engine in [Engine::Postgres, Engine::Mysql, Engine::Sqlite] {
                let quoted = Name::new(name.clone()).unwrap().quoted(engine);
                let quote = if engine == Engine::Postgres { '"' } else { '`' };
                let inner = quoted.strip_prefix(quote).unwrap().strip_suffix(quote).unwrap();
                let doubled = [quote, quote].iter().collect::<String>();
                proptest::prop_assert!(!inner.replace(&doubled, "").contains(quote));
                proptest::prop_assert_eq!(inner.replace(&doubled, &quote.to_string()), name.clone());
            }
        }
    }
}
