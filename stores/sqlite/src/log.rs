//! Keeps the write-ahead log short, on a thread of its own: copying it into the database waits for
//! the disk, and whoever acquires, renews or releases must not.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::files::beside;

/// A connection that is the last to be closed leaves the log, and its name, where they are.
pub(crate) const NO_COPY_ON_CLOSE: DbConfig = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;

/// How many frames the log may have before they are copied into the database.
const LONG: u32 = 1000;
/// From this many frames on a commit copies them itself: processes that end before their copying
/// thread has done its work must not let the log grow for ever.
const TOO_LONG: u32 = 4000;
/// Whoever opens a database reads the whole log first if nobody else has it open, and copies it
/// into the database if the file of the log is longer than this.
const LONG_AT_OPEN: u64 = 64 * 1024;
/// Of the processes that find the log too long, those copy it whose commit ends in the first
/// `TURN_WIDTH` of each `TURN` frames: about one at a time.
const TURN: u32 = 32;
const TURN_WIDTH: u32 = 4;

thread_local! {
    /// The frames in the log after the last commit of this thread.
    static FRAMES: Cell<u32> = const { Cell::new(0) };
}

/// The log of one store.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    is_copying: Arc<AtomicBool>,
}

impl Log {
    /// Of this connection, which no longer copies by itself.
    pub(crate) fn of(connection: &Connection, path: PathBuf) -> rusqlite::Result<Log> {
        connection.wal_hook(Some(|_, frames| {
            FRAMES.set(u32::try_from(frames).unwrap_or(0));
            Ok(())
        }));
        // Once it was copied its file is cut, so that the length says how much there is to read.
        connection.pragma_update(None, "journal_size_limit", 0)?;
        let length = std::fs::metadata(beside(&path, "-wal")).map_or(0, |file| file.len());
        if length > LONG_AT_OPEN {
            // Others may be reading, or copying: then somebody copies it later.
            let _ = copy(connection);
        }
        Ok(Log { path, is_copying: Arc::default() })
    }

    /// After a commit on this thread, once all who wait for it have been told.
    pub(crate) fn committed(&self, connection: &Connection) {
        let frames = FRAMES.take();
        if frames >= TOO_LONG {
            let _ = copy(connection);
        } else if frames >= LONG && frames % TURN < TURN_WIDTH {
            self.copy_aside();
        }
    }

    fn copy_aside(&self) {
        if self.is_copying.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_copying = Arc::clone(&self.is_copying);
        let path = self.path.clone();
        let copying = move || {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            // Whatever fails here is met, and told, by the verbs.
            if let Ok(connection) = Connection::open_with_flags(&path, flags)
                && connection.set_db_config(NO_COPY_ON_CLOSE, true).is_ok()
            {
                let _ = copy(&connection);
            }
            is_copying.store(false, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("leasehold-log".into());
        if thread.stack_size(128 * 1024).spawn(copying).is_err() {
            self.is_copying.store(false, Ordering::Release);
        }
    }
}

/// Copies what nobody is reading any more into the database; waits for nobody.
fn copy(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)?;
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}
