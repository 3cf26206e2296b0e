//! The store, opened.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::net::Secret;
use leasehold::sqlite::{SqliteConfig, SqliteStore};
use leasehold::{Client, Connect, Options};
use leasehold_core::{Backoff, Error, Store};

use crate::acquiring::interrupted;
use crate::asked::Reach;
use crate::context::{Context, variable};
use crate::exit::{End, usage};
use crate::output::redacted;
use crate::password;
use crate::patience::{Ears, until_done};
use crate::store_choice::{self, Choice, Source};
use crate::urls;

/// The pauses between tries of a store that refuses at once.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a server is given to hear that this process goes.
const FAREWELL_WITHIN: Duration = Duration::from_secs(1);

/// A client, and the embedded store under it if it is one.
pub(crate) struct Opened {
    pub(crate) client: Client,
    sqlite: Option<Arc<SqliteStore>>,
    /// How long the way to a server took.
    pub(crate) took: Duration,
}

impl Context {
    /// Opens the chosen store for a command that waits for nothing else: within the timeout.
    pub(crate) fn open(&self) -> Result<Opened, End> {
        let password = self.prepare()?;
        let opened = leasehold::blocking::block_on(self.connect(self.timeout, password));
        self.opened(opened.map_err(|error| store_choice::unfit(&self.choice, error))?)
    }

    /// Opens the chosen store within what is asked for. Signals leave off; where a time to wait was
    /// asked for, a store that is away is tried until its end.
    pub(crate) fn open_within(&self, ears: &mut impl Ears, reach: Reach) -> Result<Opened, End> {
        let password = self.prepare()?;
        let began = Instant::now();
        let mut backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX, u64::from(std::process::id()));
        let mut told = false;
        loop {
            let left = reach.within.saturating_sub(began.elapsed());
            let is_last = left <= self.timeout;
            let connecting = self.connect(left.min(self.timeout), password.clone());
            let connected = until_done(ears, connecting, |_, heard| interrupted(&heard))?;
            match connected {
                Ok(opened) => return self.opened(opened),
                Err(error) if error.kind().is_transient() && reach.insists => {
                    if began.elapsed() >= reach.within {
                        return Err(store_choice::unfit(&self.choice, error));
                    }
                    let left = reach.within.saturating_sub(began.elapsed());
                    // At the end the last error tells it all.
                    if !told && !is_last {
                        told = true;
                        self.voice.warn(format_args!("failed to {error}; going on trying"));
                    }
                    interrupted(&ears.hear(Some(backoff.next_wait().min(left)))?)?;
                }
                Err(error) => return Err(store_choice::unfit(&self.choice, error)),
            }
        }
    }

    /// What comes before the first try: warnings, the default's folder, the password.
    fn prepare(&self) -> Result<Option<Secret>, End> {
        self.warn();
        self.choice.make_folder()?;
        let url = self.choice.url.as_str();
        if !urls::is_remote(url) || urls::has_password(url) {
            return Ok(None);
        }
        password::find(&variable)
    }

    fn opened(&self, opened: Opened) -> Result<Opened, End> {
        self.voice.detail(format_args!("store {}", opened.client.profile().url));
        Ok(opened)
    }

    async fn connect(&self, within: Duration, password: Option<Secret>) -> Result<Opened, Error> {
        let url = self.choice.url.as_str();
        if url.starts_with("sqlite:") {
            return self.open_embedded(within);
        }
        let began = Instant::now();
        let mut connect = Connect::to(url).connect_within(within).call_within(self.timeout);
        if let Some(password) = password {
            connect = connect.password(password);
        }
        let client = connect.open().await?;
        Ok(Opened { client, sqlite: None, took: began.elapsed() })
    }

    fn open_embedded(&self, within: Duration) -> Result<Opened, Error> {
        let mut config = SqliteConfig::from_url(&self.choice.url)?;
        config.busy_limit = within;
        let mut options = Options::default();
        options.epoch = config.epoch;
        options.call_within = self.timeout;
        let store = Arc::new(SqliteStore::open(config)?);
        let client = Client::new(Arc::clone(&store) as Arc<dyn Store>, options)?;
        Ok(Opened { client, sqlite: Some(store), took: Duration::ZERO })
    }
}

impl Opened {
    /// What the command's tree keeps open so that the lock outlives nothing but it.
    pub(crate) fn liveness(&self) -> Option<BorrowedFd<'_>> {
        self.sqlite.as_ref().and_then(|store| store.liveness_fd())
    }

    /// Ends what a server keeps for this process, such as a session. Where it does not answer, that
    /// ends by itself.
    pub(crate) fn say_farewell(&self) {
        if self.client.profile().remote {
            let _ = leasehold::blocking::close(self.client.clone(), FAREWELL_WITHIN);
        }
    }

    /// Refuses what needs a claim that outlives this process, where the store keeps none.
    pub(crate) fn ensure_outlives(&self, what: &str) -> Result<(), End> {
        let profile = self.client.profile();
        if profile.transferable {
            return Ok(());
        }
        Err(usage(format!(
            "{what} needs a lock that outlives the program, and {} keeps none: use `leasehold run` \
             or `leasehold hold`",
            profile.url
        )))
    }

    /// The store's URL as a command under the lock finds it: as the environment had it, secret
    /// and all, or without its secret.
    pub(crate) fn command_url(&self, choice: &Choice) -> String {
        match choice.source {
            Source::Variable => choice.url.clone(),
            _ if urls::is_remote(&choice.url) => urls::without_secret(&choice.url),
            _ => redacted(&self.client.profile().url),
        }
    }
}
