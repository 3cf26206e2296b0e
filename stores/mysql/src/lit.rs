//! Statements as text: numbers, and bytes as hexadecimal literals. Nothing else is ever put into
//! one, so that there is nothing to escape, whatever the server's `sql_mode`.

use std::fmt::Write as _;

/// A value in a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lit {
    Null,
    Num(u64),
    Bytes(Vec<u8>),
}

impl Lit {
    pub(crate) fn bytes(bytes: &[u8]) -> Lit {
        Lit::Bytes(bytes.to_vec())
    }

    pub(crate) fn id(bits: u128) -> Lit {
        Lit::bytes(&bits.to_be_bytes())
    }

    pub(crate) fn word(word: &str) -> Lit {
        Lit::bytes(word.as_bytes())
    }

    pub(crate) fn flag(flag: bool) -> Lit {
        Lit::Num(u64::from(flag))
    }

    pub(crate) fn or_null(value: Option<Lit>) -> Lit {
        value.unwrap_or(Lit::Null)
    }
}

/// One or more statements, to be sent in one packet.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sql(String);

impl Sql {
    pub(crate) fn new() -> Sql {
        Sql::default()
    }

    /// Adds text of ours.
    pub(crate) fn text(&mut self, text: &str) -> &mut Sql {
        self.0.push_str(text);
        self
    }

    pub(crate) fn num(&mut self, n: u64) -> &mut Sql {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{n}");
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Sql {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        self.0.push_str("x'");
        for &byte in bytes {
            self.0.push(char::from(DIGITS[usize::from(byte >> 4)]));
            self.0.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        self.0.push('\'');
        self
    }

    pub(crate) fn lit(&mut self, lit: &Lit) -> &mut Sql {
        match lit {
            Lit::Null => self.text("NULL"),
            Lit::Num(n) => self.num(*n),
            Lit::Bytes(bytes) => self.bytes(bytes),
        }
    }

    /// Adds these in parentheses, with commas between.
    pub(crate) fn list<'l>(&mut self, lits: impl IntoIterator<Item = &'l Lit>) -> &mut Sql {
        self.text("(");
        for (n, lit) in lits.into_iter().enumerate() {
            if n > 0 {
                self.text(",");
            }
            self.lit(lit);
        }
        self.text(")")
    }

    /// Fills a template: each `{word}` in it is replaced by the value of that name.
    pub(crate) fn fill(&mut self, template: &str, values: &[(&str, &Lit)]) -> &mut Sql {
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            self.text(before);
            let (word, after) = after.split_once('}').unwrap_or((after, ""));
            match values.iter().find(|(name, _)| *name == word) {
                Some((_, lit)) => self.lit(lit),
                None => self.text("NULL"),
            };
            rest = after;
        }
        self.text(rest)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_put_in_stays_a_literal() {
        let mut sql = Sql::new();
        let evil = Lit::word("x'; DROP TABLE t; --");
        sql.fill(
            "A {name}, {n}, {none};",
            &[("name", &evil), ("n", &Lit::Num(7)), ("none", &Lit::Null)],
        );
        assert_eq!(sql.as_str(), "A x'78273B2044524F50205441424C4520743B202D2D', 7, NULL;");
    }

    #[test]
    fn bytes_become_pairs_of_digits() {
        assert_eq!(Sql::new().bytes(&[0, 0x7f, 0xff]).as_str(), "x'007FFF'");
        assert_eq!(Sql::new().list(&[Lit::Num(1), Lit::Bytes(vec![])]).as_str(), "(1,x'')");
    }
}
