//! Opening a database: what it is, whether this version knows it, and which boot wrote it.

use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold_core::{Error, ErrorKind, Result};
use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::{Batch, Connection, OpenFlags, TransactionBehavior};

use crate::config::SqliteConfig;
use crate::entry::column;
use crate::error::{DOING, Fail, Step, from_io};
use crate::files::{FileSystem, Prepared, Watched, prepare, still};
use crate::log::NO_COPY_ON_CLOSE;
use crate::machine::{BootId, Machine};
use crate::store::{busy_for_long, sqlite};
use crate::tx::Tokens;

/// `leas`, in the header of the file.
const APPLICATION_ID: i32 = 0x6c65_6173;
/// The version of the tables that this code writes.
const VERSION: i32 = 1;

/// An open database.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    pub(crate) tokens: Tokens,
    pub(crate) watched: Watched,
    pub(crate) prepared: Prepared,
}

pub(crate) fn open(config: &SqliteConfig, machine: &Machine) -> Result<Opened> {
    // A new file is made and closed here; a descriptor of it closed while another thread of this
    // process has it open through SQLite would drop that one's locks.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let prepared = {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        prepare(config)?
    };
    let connection = connect(&prepared.path)?;
    let started = Instant::now();
    let meta = loop {
        match settle_in(&connection, machine, &prepared) {
            Ok(meta) => break meta,
            Err(Fail::Busy) if started.elapsed() < config.busy_limit => {
                std::thread::sleep(Duration::from_micros(500));
            }
            Err(Fail::Busy | Fail::Reserve(_)) => return Err(busy_for_long()),
            Err(Fail::Error(error)) => return Err(error),
        }
    };
    still(&config.path, prepared.id)?;
    Ok(Opened {
        watched: Watched::new(&config.path, &prepared)?,
        connection,
        tokens: meta.tokens,
        prepared,
    })
}

fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = sqlite(Connection::open_with_flags(path, flags))?;
    // Whoever is in the way is waited for without blocking a thread.
    sqlite(connection.busy_timeout(Duration::ZERO))?;
    // A short-lived process leaves the log to those that write much.
    sqlite(connection.set_db_config(NO_COPY_ON_CLOSE, true))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

struct Meta {
    tokens: Tokens,
}

/// Brings the database to this version and this boot; reads only if it is there already.
fn settle_in(connection: &Connection, machine: &Machine, prepared: &Prepared) -> Step<Meta> {
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application != APPLICATION_ID || version != VERSION {
        make_tables(connection, machine)?;
    }
    let (boot, tokens) = read_meta(connection)?;
    if boot == machine.boot {
        return Ok(Meta { tokens });
    }
    new_boot(connection, machine, prepared)?;
    let (_, tokens) = read_meta(connection)?;
    Ok(Meta { tokens })
}

fn read_meta(connection: &Connection) -> Step<(BootId, Tokens)> {
    let mut select =
        connection.prepare_cached("SELECT boot, token_end, token_floor FROM meta WHERE one = 1")?;
    let (boot, end, floor): (Vec<u8>, i64, i64) =
        select.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let bad = || Error::new(ErrorKind::Corrupt, DOING, "its meta row cannot be right");
    let boot = <[u8; 16]>::try_from(boot).map_err(|_| bad())?;
    let number = |n: i64| u64::try_from(n).map_err(|_| bad());
    Ok((BootId(boot), Tokens { end: number(end)?, floor: number(floor)? }))
}

/// Small pages: a row is a few hundred bytes, and every commit writes, and every lone opener reads,
/// whole pages of the log.
const PAGE_SIZE: u32 = 1024;

/// Makes the tables of a new database; refuses what is not one of ours, and changes nothing then.
fn make_tables(connection: &Connection, machine: &Machine) -> Step<()> {
    {
        // One snapshot: another process may be making them just now.
        let seen = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Deferred)?;
        if has_tables(&seen)? {
            return Ok(());
        }
    }
    // Neither can be done within a transaction; both do nothing when they are done already.
    connection.pragma_update(None, "page_size", PAGE_SIZE)?;
    let journal: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if journal != "wal" {
        let detail = "its file system does not carry a write-ahead log";
        return Err(Error::new(ErrorKind::Config, DOING, detail)
            .advise("use a local path, such as /var/lib/leasehold")
            .into());
    }
    let tx = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    if has_tables(&tx)? {
        return Ok(()); // another process was first
    }
    tx.execute_batch(include_str!("schema.sql"))?;
    let insert = "INSERT INTO meta (one, boot, token_end, token_floor) VALUES (1, ?1, 1, 1)";
    tx.execute(insert, [machine.boot.0.as_slice()])?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", VERSION)?;
    tx.commit()?;
    Ok(())
}

/// Whether it is a database of ours and of this version; an error unless it is that or empty.
fn has_tables(connection: &Connection) -> Step<bool> {
    let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    if application == APPLICATION_ID && version == VERSION {
        return Ok(true);
    }
    if application == APPLICATION_ID && version > VERSION {
        let detail = format!("it was written by a newer leasehold (version {version})");
        return Err(Error::new(ErrorKind::Version, DOING, detail)
            .advise("use that version, or name another path")
            .into());
    }
    let count = "SELECT count(*) FROM sqlite_schema";
    let tables: i64 = connection.query_row(count, [], |row| row.get(0))?;
    if tables > 0 || application != 0 || version != 0 {
        let detail = "its file is another application's database";
        return Err(Error::new(ErrorKind::Config, DOING, detail)
            .advise("name another path")
            .into());
    }
    Ok(false)
}

/// The machine has booted since: see boot.sql.
fn new_boot(connection: &Connection, machine: &Machine, prepared: &Prepared) -> Step<()> {
    if prepared.system != FileSystem::Local {
        let detail = "it was last used under another boot, and its file system is not known to be \
                      local to this machine";
        return Err(Error::new(ErrorKind::Config, DOING, detail)
            .advise("use a local path, such as /var/lib/leasehold")
            .into());
    }
    let tx = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let (boot, _) = read_meta(&tx)?;
    if boot == machine.boot {
        return Ok(()); // another process was first
    }
    let now = column(machine.shared(machine.clock.now()).as_nanos());
    let wall_us = column(machine.wall.now_us());
    let mut batch = Batch::new(&tx, include_str!("boot.sql"));
    while let Some(mut statement) = batch.next()? {
        if let Some(at) = statement.parameter_index(":now")? {
            statement.raw_bind_parameter(at, now)?;
        }
        if let Some(at) = statement.parameter_index(":wall_us")? {
            statement.raw_bind_parameter(at, wall_us)?;
        }
        if let Some(at) = statement.parameter_index(":boot")? {
            statement.raw_bind_parameter(at, machine.boot.0.as_slice())?;
        }
        statement.raw_execute()?;
    }
    tx.commit()?;
    Ok(())
}

/// Reserves an hour of token numbers from this one on, on the disk before it returns.
pub(crate) fn reserve(connection: &Connection, path: &Path, from: u64) -> Step<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    let reserved = connection
        .prepare_cached(include_str!("token_reserve.sql"))
        .and_then(|mut reserve| reserve.execute([column(from)]));
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    reserved?;
    // The names of the database and of its log must be on the disk too.
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all()).map_err(|e| {
        from_io(ErrorKind::Unavailable, "its directory cannot be written to the disk", e)
    })?;
    Ok(())
}
