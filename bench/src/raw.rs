//! The raw write that a claim or its release needs at least: one small row, one transaction, in
//! pages as small as the store's.

use std::path::Path;

use rusqlite::Connection;

use crate::Result;

pub(crate) struct Raw {
    connection: Connection,
}

impl Raw {
    pub(crate) fn open(path: &Path) -> Result<Raw> {
        let connection = Connection::open(path)?;
        connection.execute_batch(
            "PRAGMA page_size = 1024; PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
             CREATE TABLE IF NOT EXISTS lock
             (name TEXT PRIMARY KEY, owner BLOB, until INTEGER, token INTEGER);",
        )?;
        Ok(Raw { connection })
    }

    pub(crate) fn write(&self, owner: u128, until: i64) -> Result<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.connection
            .prepare_cached(
                "INSERT INTO lock VALUES ('bench', ?1, ?2, 1) ON CONFLICT (name) DO UPDATE
                 SET owner = excluded.owner, until = excluded.until, token = token + 1",
            )?
            .execute((owner.to_be_bytes().as_slice(), until))?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(())
    }
}
