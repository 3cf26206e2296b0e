//! Which error of which engine is of which class.

use std::fmt;

/// What a program may do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Class {
    /// The transaction has read what has changed since: roll back and run it again whole.
    /// PostgreSQL 40001, SQLite BUSY_SNAPSHOT, MariaDB 1020.
    Restart,
    /// The database ended a deadlock at this transaction's cost: as [`Class::Restart`]. MySQL has
    /// rolled it back already, and what is sent before a new one begins is in none.
    /// PostgreSQL 40P01, MySQL 1213 and 3058.
    Deadlock,
    /// Another transaction holds what this one waited for, and the wait is over.
    /// PostgreSQL 55P03, MySQL 1205 and 3572, SQLite BUSY and LOCKED.
    Busy,
    /// The transaction has failed before and takes no statement but ROLLBACK. PostgreSQL 25P02.
    Aborted,
    /// There is no transaction. [`Begun::on`](crate::Begun::on), PostgreSQL 25P01.
    NoTransaction,
    /// A unique key is there already.
    Duplicate,
    /// A CHECK, a foreign key, a trigger or the type of its column refuses the value.
    Refused,
    /// There is no such table.
    NoTable,
    /// The table has no such column.
    NoColumn,
    /// The role may not do this.
    Permission,
    /// The server or the transaction takes no writes.
    ReadOnly,
    /// What the database reads of itself is damaged.
    Corrupt,
    /// The connection is gone. What was sent may have happened.
    Connection,
    /// Anything else.
    Other,
}

impl Class {
    /// The class of an error of PostgreSQL, by its SQLSTATE.
    pub fn of_postgres(sqlstate: &str) -> Class {
        match sqlstate {
            "40001" => Class::Restart,
            "40P01" => Class::Deadlock,
            "55P03" => Class::Busy,
            "25P02" => Class::Aborted,
            "25P01" => Class::NoTransaction,
            "23505" => Class::Duplicate,
            // Constraints, values out of range or too long, and what triggers raise.
            "23502" | "23503" | "23514" | "23P01" | "22001" | "22003" | "P0001" => Class::Refused,
            // A schema that is not there has no table either.
            "42P01" | "3F000" => Class::NoTable,
            "42703" => Class::NoColumn,
            "42501" => Class::Permission,
            "25006" => Class::ReadOnly,
            "XX001" | "XX002" => Class::Corrupt,
            // Shut down, starting, or ended for being idle, in a transaction or not.
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Class::Connection,
            other if other.starts_with("08") => Class::Connection,
            _ => Class::Other,
        }
    }

    /// The class of an error of MySQL or MariaDB, by its number.
    pub fn of_mysql(number: u16) -> Class {
        match number {
            1020 => Class::Restart,
            1213 | 3058 => Class::Deadlock,
            1205 | 3572 => Class::Busy,
            1062 | 1586 => Class::Duplicate,
            // NULL, out of range, too long, foreign keys, SIGNAL, CHECK of MySQL and of MariaDB.
            1048 | 1264 | 1406 | 1690 | 1216 | 1217 | 1451 | 1452 | 1644 | 3819 | 4025 => {
                Class::Refused
            }
            1051 | 1146 | 1049 => Class::NoTable,
            1054 => Class::NoColumn,
            1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => Class::Permission,
            1290 | 1792 | 1836 => Class::ReadOnly,
            // A table or an index that cannot be read.
            1034 | 1194 | 1195 | 1712 => Class::Corrupt,
            // Shutting down, killed, idle for too long, gone.
            1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 2006 | 2013 | 3169 | 4031 => {
                Class::Connection
            }
            _ => Class::Other,
        }
    }

    /// The class of an error of SQLite, by its extended code and its text: SQLite has no code for
    /// a missing table or column.
    pub fn of_sqlite(code: i32, text: &str) -> Class {
        match code {
            // BUSY_SNAPSHOT; every other BUSY, and LOCKED.
            517 => Class::Restart,
            // UNIQUE, PRIMARYKEY, ROWID.
            2067 | 1555 | 2579 => Class::Duplicate,
            1 if text.starts_with("no such table") => Class::NoTable,
            1 if text.starts_with("no such column") || text.contains("has no column named") => {
                Class::NoColumn
            }
            _ => match code & 0xff {
                5 | 6 => Class::Busy,
                // PERM, AUTH.
                3 | 23 => Class::Permission,
                8 => Class::ReadOnly,
                // CORRUPT, NOTADB.
                11 | 26 => Class::Corrupt,
                // The other constraints, RAISE among them; a value too big.
                18 | 19 => Class::Refused,
                _ => Class::Other,
            },
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Restart => "what the transaction has read has changed since",
            Class::Deadlock => "the database ended a deadlock at this transaction's cost",
            Class::Busy => "another transaction holds it",
            Class::Aborted => "the transaction is aborted already; roll it back",
            Class::NoTransaction => "the connection is in no transaction",
            Class::Duplicate => "the unique key is there already",
            Class::Refused => "the table refuses the value",
            Class::NoTable => "there is no such table",
            Class::NoColumn => "the table has no such column",
            Class::Permission => "the role may not do this",
            Class::ReadOnly => "no writes are taken here",
            Class::Corrupt => "the database is damaged",
            Class::Connection => "the connection is gone",
            Class::Other => "the database refused the statement",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_tried_again_is_told_from_what_cannot() {
        let classes = [
            ("40001", Class::Restart),
            ("40P01", Class::Deadlock),
            ("55P03", Class::Busy),
            ("25P02", Class::Aborted),
            ("25P01", Class::NoTransaction),
            ("23505", Class::Duplicate),
            ("23514", Class::Refused),
            ("08006", Class::Connection),
            ("57014", Class::Other),
        ];
        for (sqlstate, class) in classes {
            assert_eq!(Class::of_postgres(sqlstate), class, "{sqlstate}");
        }
        let classes = [
            (1213, Class::Deadlock),
            (3058, Class::Deadlock),
            (1205, Class::Busy),
            (3572, Class::Busy),
            (1062, Class::Duplicate),
            (3819, Class::Refused),
            (4025, Class::Refused),
            (1146, Class::NoTable),
            (1054, Class::NoColumn),
            (1142, Class::Permission),
            (1064, Class::Other),
        ];
        for (number, class) in classes {
            assert_eq!(Class::of_mysql(number), class, "{number}");
        }
        let classes = [
            (5, "", Class::Busy),
            (6, "", Class::Busy),
            (261, "", Class::Busy),
            (262, "", Class::Busy),
            (517, "", Class::Restart),
            (773, "", Class::Busy),
            (1555, "", Class::Duplicate),
            (275, "", Class::Refused),
            (1811, "", Class::Refused),
            (1, "no such table: t", Class::NoTable),
            (1, "table t has no column named c", Class::NoColumn),
            (1, "near \"x\": syntax error", Class::Other),
            (1032, "", Class::ReadOnly),
        ];
        for (code, text, class) in classes {
            assert_eq!(Class::of_sqlite(code, text), class, "{code} {text}");
        }
    }
}
