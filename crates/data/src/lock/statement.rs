//! Statements out of their files.

use std::borrow::Cow;

use leasehold_sql::Engine;

use crate::Table;

/// The statement of a file, without the comment before it and the semicolon behind it.
pub(super) fn body(file: &'static str) -> &'static str {
    let mut rest = file;
    while rest.starts_with("--") {
        rest = rest.find('\n').map_or("", |end| &rest[end + 1..]);
    }
    rest.trim().trim_end_matches(';')
}

/// The statement of a file, on this table in place of `leasehold_lock`.
pub(super) fn on(file: &'static str, table: Option<&Table>, engine: Engine) -> Cow<'static, str> {
    match table {
        None => Cow::Borrowed(body(file)),
        Some(table) => Cow::Owned(body(file).replace("leasehold_lock", &table.quoted(engine))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_a_comment_and_a_statement() {
        assert_eq!(body("-- a\n-- b; c\nSELECT 1\nFROM x;\n"), "SELECT 1\nFROM x");
        assert_eq!(body("SELECT '--'"), "SELECT '--'");
        let table = Table::in_schema("a", "b").unwrap();
        let text = on("-- x\nSELECT 1 FROM leasehold_lock;", Some(&table), Engine::Mysql);
        assert_eq!(text, "SELECT 1 FROM `a`.`b`");
    }
}
