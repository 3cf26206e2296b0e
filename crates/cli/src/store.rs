//! The store, opened.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use leasehold::sqlite::{SqliteConfig, SqliteStore};
use leasehold::{Client, Options};
use leasehold_core::{Error, Store};

use crate::context::Context;
use crate::exit::End;
use crate::output::redacted;
use crate::store_choice::{self, Choice, Source};

/// A client, and the embedded store under it if it is one.
pub(crate) struct Opened {
    pub(crate) client: Client,
    sqlite: Option<Arc<SqliteStore>>,
}

impl Context {
    /// Opens the chosen store.
    pub(crate) fn open(&self) -> Result<Opened, End> {
        self.choice.make_folder()?;
        let opened = self.connect().map_err(|error| store_choice::unfit(&self.choice, error))?;
        self.voice.detail(format_args!("store {}", opened.client.profile().url));
        Ok(opened)
    }

    fn connect(&self) -> Result<Opened, Error> {
        let url = self.choice.url.as_str();
        if !url.starts_with("sqlite:") {
            return Ok(Opened { client: leasehold::blocking::connect(url)?, sqlite: None });
        }
        let mut config = SqliteConfig::from_url(url)?;
        config.busy_limit = self.timeout;
        let mut options = Options::default();
        options.epoch = config.epoch;
        options.call_within = self.timeout;
        let store = Arc::new(SqliteStore::open(config)?);
        let client = Client::new(Arc::clone(&store) as Arc<dyn Store>, options)?;
        Ok(Opened { client, sqlite: Some(store) })
    }
}

impl Opened {
    /// What the command's tree keeps open so that the lock outlives nothing but it.
    pub(crate) fn liveness(&self) -> Option<BorrowedFd<'_>> {
        self.sqlite.as_ref().and_then(|store| store.liveness_fd())
    }

    /// The store's URL as a command under the lock finds it: as the environment had it, secret
    /// and all, or without its secret.
    pub(crate) fn command_url(&self, choice: &Choice) -> String {
        match choice.source {
            Source::Variable => choice.url.clone(),
            _ => redacted(&self.client.profile().url),
        }
    }
}
