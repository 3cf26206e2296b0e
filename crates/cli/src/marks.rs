//! The marks of fences, kept in the embedded store's database, durable before they are relied on.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::sqlite::{SqliteConfig, SqliteStore};
use leasehold_core::{Access, Marks, Stale};
use leasehold_fence::file::{Gate, MarkStore, StoreError};
use leasehold_fence::{ErrorKind, Resource, sqlite};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::context::Context;
use crate::exit::{Code, End, config};
use crate::store_choice;

/// A table `leasehold_fence` beside the store's own tables.
#[derive(Debug)]
struct EmbeddedMarks {
    path: PathBuf,
    busy_limit: Duration,
}

impl EmbeddedMarks {
    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_EXRESCODE;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.busy_limit)?;
        // The store's own connections are content with less; a mark must survive a power cut.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        Ok(connection)
    }
}

impl MarkStore for EmbeddedMarks {
    fn marks(&self, of: &Resource) -> Result<Marks, StoreError> {
        let connection = self.connect()?;
        if !connection.table_exists(None, "leasehold_fence")? {
            return Ok(Marks::default());
        }
        Ok(sqlite::marks(&connection, of)?)
    }

    fn update(
        &self,
        of: &Resource,
        change: &mut dyn FnMut(Marks) -> Result<Marks, Stale>,
    ) -> Result<Result<Marks, Stale>, StoreError> {
        let mut connection = self.connect()?;
        sqlite::create_table(&connection)?;
        let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let before = sqlite::marks(&step, of)?;
        let raised = match change(before) {
            Ok(raised) => raised,
            Err(stale) => return Ok(Err(stale)),
        };
        // Each mark that rose is entered as it would be by an access of its own.
        for (access, was, is) in [
            (Access::Exclusive, before.exclusive, raised.exclusive),
            (Access::Shared, before.shared, raised.shared),
        ] {
            if let Some(mark) = is
                && was != is
            {
                sqlite::enter(&step, of, access, mark)?;
            }
        }
        step.commit()?;
        Ok(Ok(raised))
    }
}

impl Context {
    /// The gate through which fenced accesses go: its marks in the embedded store's database, its
    /// locks in a folder beside it.
    pub(crate) fn gate(&self) -> Result<Gate, End> {
        let choice = self.marks_store()?;
        self.warn();
        choice.make_folder()?;
        let mut config = SqliteConfig::from_url(&choice.url)?;
        config.busy_limit = self.timeout;
        let path = config.path.clone();
        // Made, or found to be one that this version knows and this user may use.
        drop(SqliteStore::open(config).map_err(|error| store_choice::unfit(&choice, error))?);
        self.voice.detail(format_args!("marks in {}", choice.url));
        let folder = beside(&path, "-fence");
        let mode = std::fs::metadata(&path).map_or(0o600, |found| found.mode() & 0o666);
        make_folder(&folder, mode)?;
        let marks = EmbeddedMarks { path, busy_limit: self.timeout };
        let gate = Gate::open(folder).map_err(refusal)?;
        Ok(gate.with_mode(mode).with_marks(Arc::new(marks)))
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    name.into()
}

/// Makes the folder for those who may use the database, whatever the umask.
fn make_folder(folder: &Path, mode: u32) -> Result<(), End> {
    if folder.is_dir() {
        return Ok(());
    }
    // Who may read and write the file may also look up names in the folder.
    let mode = mode | (mode & 0o444) >> 2;
    let made = DirBuilder::new()
        .mode(0o700)
        .create(folder)
        .and_then(|()| std::fs::set_permissions(folder, Permissions::from_mode(mode)));
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(config(format!("cannot make the folder {}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

/// How the program ends when a fence does not let an access pass.
pub(crate) fn refusal(error: leasehold_fence::Error) -> End {
    let code = match error.kind() {
        ErrorKind::Stale(_) | ErrorKind::OtherEpoch(_) => Code::Stale,
        ErrorKind::Busy | ErrorKind::Restart => Code::Busy,
        ErrorKind::Usage => Code::Usage,
        ErrorKind::NotInTransaction | ErrorKind::NotEntered => Code::Bug,
        _ => Code::Config,
    };
    let mut text = format!("failed to {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    End::Fail(code, text)
}
